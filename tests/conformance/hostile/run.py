"""Try bad inputs of all kinds on the commands of accel_bridge, and count the answers.

    make hostile ARGS="--count 400 --seed 1"
    python tests/conformance/hostile/run.py [--count N] [--seed N] [--kind KIND] [--find TEXT]
        [--skip N] [--to N] [--show]

Every case runs in a directory of its own. It must be refused in three parts, or taken where that is
right; nothing may hang, nothing that was there may change. Exits 1 beyond the numbers of
docs/results.md. A full disk takes root: without it those cases are left out, and counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import warm_python

from conformance.hostile.case import Case
from conformance.hostile.fixtures import can_mount, furnish, prepare_templates, remove_templates
from conformance.hostile.judge import Answer, Result, judge
from conformance.hostile.tables import KINDS, draw

#: Raw tracebacks that the issue allows; of everything else that is bad, none.
MOST_RAW = 5
RAW = (Answer.TRACEBACK, Answer.BARE)


def try_one(case: Case, base: Path) -> Result | None:
    """Run a case below ``base``; None where this machine cannot make what it needs."""
    if case.mounts and not can_mount():
        return None
    with tempfile.TemporaryDirectory(dir=base) as name:
        directory = Path(name, "work")
        furnish(directory, checkpoint=case.checkpoint)
        case.prepare(directory)
        # A fork of the warm Python has the file systems of that.
        warm = case.trains and not case.mounts
        python = warm_python.interpreter() if warm else sys.executable
        return judge(case, directory, python)


def show(number: int, result: Result, whole: bool) -> None:
    """One line, and what was printed where the answer is bad."""
    case = result.case
    mark = "  " if result.answer.good else "! "
    print(f"{mark}{number:4} {result.seconds:5.1f}s {case.kind}: {case.name!a}: ", end="")
    print(f"{result.answer.value} {result.details}".rstrip(), flush=True)
    if not result.answer.good or whole:
        print(f"       {case.words!a}")
        lines = result.shown.splitlines()
        for line in lines if whole else [*lines[:4], "...", *lines[-12:]]:
            print(f"       | {line!a}")


def report(results: Sequence[Result], seconds: float, left_out: int) -> bool:
    """Print the table of kinds and answers; whether the numbers are reached."""
    by_kind = Counter((result.case.kind, result.answer) for result in results)
    shown = [answer for answer in Answer if any(by_kind[kind, answer] for kind in KINDS)]
    print()
    for kind in KINDS:
        counts = {answer: by_kind[kind, answer] for answer in shown if by_kind[kind, answer]}
        if counts:
            words = ", ".join(f"{count} {answer.name.lower()}" for answer, count in counts.items())
            print(f"{kind:14} {sum(counts.values()):4}: {words}")
    total = Counter(result.answer for result in results)
    raw = sum(total[answer] for answer in RAW)
    bad = sum(count for answer, count in total.items() if not answer.good and answer not in RAW)
    print(f"\n{len(results)} bad inputs in {seconds:.0f} s", end="")
    print(f" ({left_out} left out: no disk could be filled)" if left_out else "")
    for answer in Answer:
        print(f"  {total[answer]:4} {answer.value}")
    return bad == 0 and raw <= MOST_RAW


def main() -> int:
    """Read the command line and try; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=400, help="of cases; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be repeated")
    parser.add_argument("--find", default="", help="only cases whose name holds this")
    parser.add_argument("--skip", type=int, default=0, help="so many first: to go on in pieces")
    parser.add_argument("--to", type=int, help="up to this one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="what every command printed")
    options = parser.parse_args()
    source = random.Random(options.seed)
    cases = [
        case
        for case in draw(options.count, source, options.kind or list(KINDS))[
            options.skip : options.to
        ]
        if options.find in case.name
    ]
    began, results, left_out = time.monotonic(), [], 0
    prepare_templates(any(case.checkpoint for case in cases))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="hostile-") as base,
            ThreadPoolExecutor(options.jobs) as pool,
        ):
            found = pool.map(partial(try_one, base=Path(base)), cases)
            for number, result in enumerate(found, options.skip):
                if result is None:
                    left_out += 1
                    continue
                results.append(result)
                show(number, result, options.show)
    finally:
        remove_templates()
    return 0 if report(results, time.monotonic() - began, left_out) else 1


if __name__ == "__main__":
    raise SystemExit(main())
