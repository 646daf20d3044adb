"""Trains tiny models with other Megatrons, unedited, and compares every layout with one process.

    python tests/conformance/megatron/matrix.py [NAME=]CHECKOUT... [--layouts one,tp2-sp,...]
        [--models dense,moe,mla-8,...] [--precisions fp32,bf16] [--backend cpu] [--entry module]
        [--four] [--wheel DIRECTORY] [--jobs 1] [--warm] [--json FILE] [--logs DIRECTORY]

CHECKOUT is a directory with a Megatron's package and its pretrain_gpt.py (or, for `--entry
pretrain`, where a wheel was unpacked), or NAME=DIRECTORY, since a branch spells the number of its
next release. One process trains two iterations and saves; every layout then loads that checkpoint
and trains on, and its losses must be those of one process. ``--wheel`` is another
Transformer Engine's unpacked wheel. Not part of the test suite: a cell takes half a minute. The
committed results are in tools/compatibility.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from cells import ENTRIES, Cell, Chain, Trainer
from layouts import FOUR_LAYOUTS, FOUR_MODELS, LAYOUTS, MODELS, USUAL, USUAL_LAYOUTS
from megatron_programs import version_of

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from compatibility_results import Row, new_run  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Print one line per cell; status 1 when one failed."""
    parser = _parser()
    if parser.parse_args(words).four:
        models, layouts = ",".join(FOUR_MODELS), ",".join(FOUR_LAYOUTS)
        parser.set_defaults(models=models, layouts=layouts, precisions="fp32,bf16")
    arguments = parser.parse_args(words)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        logs: Path = arguments.logs or Path(name)
        logs.mkdir(parents=True, exist_ok=True)
        chains = [
            Chain(_trainer(arguments, checkout), version, model, precision, logs)
            for version, checkout in map(_named, arguments.checkouts)
            for model in arguments.models.split(",")
            for precision in arguments.precisions.split(",")
        ]
        rows = []
        for cell in _cells(chains, arguments):
            print(_line(cell), flush=True)
            rows.append(row_of(cell))
        for chain in chains:
            chain.directory.cleanup()
    if arguments.json:
        given = list(sys.argv[1:] if words is None else words)
        command = "python tests/conformance/megatron/matrix.py " + shlex.join(
            map(_without_paths, given)
        )
        rows.sort(key=lambda row: (row.megatron, row.subject, list(LAYOUTS).index(row.case)))
        run = new_run("matrix", arguments.backend, command, rows, arguments.python)
        run.write(arguments.json)
    failed = sum(row.outcome == "failed" for row in rows)
    print(f"{len(rows)} cells, {failed} failed, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="+", metavar="[NAME=]CHECKOUT")
    parser.add_argument(
        "--layouts", default=",".join(USUAL_LAYOUTS), help=f"of {', '.join(LAYOUTS)}"
    )
    parser.add_argument("--models", default=",".join(USUAL), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--precisions", default="fp32")
    four = "every model, precision and layout that wants four processes (or --backend cuda, GPUs)"
    parser.add_argument("--four", action="store_true", help=four)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "ascend", "cuda"))
    parser.add_argument("--entry", default="module", choices=ENTRIES, help="how it is started")
    parser.add_argument(
        "--wheel", type=Path, metavar="DIRECTORY", help="another Transformer Engine"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of this machine, for cuda")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one training")
    parser.add_argument(
        "--within", type=float, default=float("inf"), help="start nothing after this many seconds"
    )
    parser.add_argument("--python", default=sys.executable, help="runs the trainings")
    parser.add_argument("--warm", action="store_true", help="forks of one Python (see warm_python)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--logs", type=Path, help="keep every run's output in this directory")
    return parser


def _named(word: str) -> tuple[str, Path]:
    """Name and directory of a Megatron."""
    name, _, path = word.rpartition("=")
    checkout = Path(path).resolve()
    return name or version_of(checkout), checkout


def _trainer(arguments: argparse.Namespace, checkout: Path) -> Trainer:
    python = arguments.python
    if arguments.warm:
        from warm_python import interpreter

        backend = arguments.backend
        python = interpreter(emulated=backend == "ascend", cuda=backend == "cuda")
    own = (arguments.backend, arguments.entry, python, arguments.limit, arguments.wheel)
    return Trainer(checkout, *own)


def _cells(chains: Sequence[Chain], arguments: argparse.Namespace) -> Iterator[Cell]:
    """Every layout of every chain as it ends; the starts come first, since all others need them."""
    began = time.monotonic()
    devices = _Devices(arguments.gpus if arguments.backend == "cuda" else 0)

    def job(work: Callable[[str], Cell], processes: int) -> Cell | None:
        if time.monotonic() - began > arguments.within:
            return None
        with devices.lend(processes) as gpus:
            return work(gpus)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for one in [pool.submit(job, chain.start, 1) for chain in chains]:
            one.result()
        rest = [
            pool.submit(job, partial(chain.run, name), LAYOUTS[name].processes)
            for name, chain in itertools.product(arguments.layouts.split(","), chains)
            if "--num-experts" in MODELS[chain.model] or not LAYOUTS[name].experts
        ]
        for future in as_completed(rest):
            cell = future.result()
            if cell is not None:
                yield cell


class _Devices:
    """Lends out the GPUs that the fewest trainings use; they share them."""

    def __init__(self, number: int) -> None:
        self._users = [0] * number
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self, number: int) -> Iterator[str]:
        """CUDA_VISIBLE_DEVICES for ``number`` processes; empty where there are no GPUs."""
        with self._lock:
            order = sorted(range(len(self._users)), key=self._users.__getitem__)
            lent = sorted(order[:number])
            for one in lent:
                self._users[one] += 1
        try:
            yield ",".join(map(str, lent))
        finally:
            with self._lock:
                for one in lent:
                    self._users[one] -= 1


def row_of(cell: Cell) -> Row:
    """A cell as the results have it."""
    return Row(
        megatron=cell.chain.version,
        subject=cell.chain.subject,
        case=cell.layout,
        outcome=cell.outcome,
        reason=cell.refusal or _without_paths(cell.error),
        value=cell.difference,
        seconds=cell.seconds,
    )


def _line(cell: Cell) -> str:
    off = "-" if cell.difference is None else f"{cell.difference:.1e}"
    return (
        f"{cell.chain.version:9} {cell.chain.subject:14} {cell.layout:12} {cell.seconds:6} s  "
        f"off by {off:8} {cell.outcome} {cell.refusal or cell.error}"
    )


def _without_paths(text: str) -> str:
    """A result without the directories of this machine: only their last parts."""
    return re.sub(r"(?<![\w.])/[\w.@+-]+(/[\w.@+-]+)+", lambda match: Path(match[0]).name, text)


if __name__ == "__main__":
    sys.exit(main())
