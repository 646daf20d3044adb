"""What the results of Megatron's own unit tests mean, over all numbers of ranks together.

Megatron's CI runs every test on eight ranks. Here a test has passed when it passed on some number
of ranks, and did not fail on eight or fails there for a reason that is on the reviewed list
tests/conformance/suites/megatron_suite.toml:

    [[reason]]
    kind = "unclaimed"                  # or another of KINDS
    name = "NVFP4"                      # short: the table groups by it
    why = "needs a Blackwell GPU"
    messages = ["NVFP4.*not supported"] # expressions; one must be found in the message
    tests = ["test_fp4_*"]              # file::test below tests/unit_tests; * stands for anything
    on = ["cpu"]                        # backends; all where it is left out

A test that skips itself counts as Megatron's own, whatever it says; entries of kind "skips" only
name the causes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suite_outcomes import counts_text, matches

if TYPE_CHECKING:
    from compatibility_results import Run

ROOT: Final = Path(__file__).resolve().parents[3]
REASONS: Final = ROOT / "tests/conformance/suites/megatron_suite.toml"
#: Kinds of reasons -> what they mean.
KINDS: Final = {
    "unclaimed": "it needs a feature of Megatron that the bridge does not claim",
    "harness": "data, network, a package or a number of ranks was missing",
    "upstream": "it fails, or skips itself, without the bridge too",
}
#: The kind of entries that say why a test skips itself.
SKIPS: Final = "skips"
#: At most so many features are not claimed.
FEATURES: Final = 12
#: The number of ranks that Megatron's tests are written for.
UPSTREAM_WORLD: Final = 8


@dataclass(frozen=True, slots=True)
class Reason:
    """An entry of the reviewed list."""

    kind: str
    name: str
    why: str
    messages: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    on: tuple[str, ...] = ()

    def covers(self, test: str, message: str, backend: str) -> bool:
        """Whether it explains that ``test`` fails with ``message`` on a backend."""
        return (
            (not self.on or backend in self.on)
            and (not self.tests or any(matches(one, test) for one in self.tests))
            and (not self.messages or any(re.search(one, message) for one in self.messages))
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a test: ``passed``, ``failed`` or a kind of reason, and the reason's name."""

    outcome: str
    reason: str = ""
    message: str = ""
    where: str = ""


PASSED: Final = Verdict("passed")
NOT_RUN: Final = Verdict("harness", "not reached within the time")


def read_reasons(path: Path = REASONS) -> list[Reason]:
    """The reviewed list.

    :raises ValueError: an entry is incomplete, or more features than :data:`FEATURES` are named.
    """
    import tomllib

    reasons = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("reason", []):
        lists = {key: tuple(entry[key]) for key in ("messages", "tests", "on") if key in entry}
        reason = Reason(**{**entry, **lists})
        if reason.kind not in (*KINDS, SKIPS) or not (reason.messages or reason.tests):
            raise ValueError(f"{path}: {entry} has an unknown kind, or neither messages nor tests")
        reasons.append(reason)
    features = {reason.name for reason in reasons if reason.kind == "unclaimed"}
    if len(features) > FEATURES:
        raise ValueError(f"{path} names {len(features)} unclaimed features; at most {FEATURES}")
    return reasons


def read(path: Path) -> dict[str, Any]:
    """A document of ``megatron_suite.py run``."""
    data = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document


def judge_one(
    test: str, end: Mapping[str, Any], backend: str, reasons: Sequence[Reason]
) -> Verdict:
    """What an outcome on one number of ranks means."""
    if end["outcome"] == "passed":
        return PASSED
    if end["outcome"] == "not run":
        return NOT_RUN
    skipped = end["outcome"] == "skipped"
    message = end["message"] if skipped else f"{end['message']} {end['where']}"
    covering = (
        reason
        for reason in reasons
        if (reason.kind == SKIPS) == skipped and reason.covers(test, message, backend)
    )
    reason = next(covering, None)
    if skipped:
        name = f"skips itself: {reason.name}" if reason else "skips itself"
        return Verdict("upstream", name, end["message"])
    kind, name = (reason.kind, reason.name) if reason else ("failed", _short(end["message"]))
    return Verdict(kind, name, end["message"], end["where"])


def judge(verdicts: Mapping[int, Verdict]) -> Verdict:
    """One verdict from those on several numbers of ranks.

    On eight ranks a failure of ours counts, whatever came of fewer; on fewer it counts unless the
    test passes on eight: Megatron's tests are written for eight.
    """
    largest = verdicts.get(UPSTREAM_WORLD)
    if largest is not None and largest.outcome == "failed":
        return largest
    found = list(verdicts.values())
    if PASSED in found:
        return PASSED
    for outcome in ("failed", "unclaimed", "harness", "upstream"):
        for verdict in found:
            # What was not reached on one number of ranks is known from another.
            if verdict.outcome == outcome and verdict is not NOT_RUN:
                return verdict
    return NOT_RUN


def judge_all(
    documents: Iterable[Mapping[str, Any]], reasons: Sequence[Reason]
) -> tuple[dict[str, Verdict], dict[int, dict[str, Verdict]]]:
    """(test -> verdict over all ranks, world -> test -> verdict)."""
    worlds: dict[int, dict[str, Verdict]] = defaultdict(dict)
    for document in documents:
        known = worlds[document["world"]]
        for test, end in document["tests"].items():
            verdict = judge_one(test, end, document["backend"], reasons)
            # Of several runs on as many ranks, the one that reached the test counts.
            if test not in known or verdict is not NOT_RUN:
                known[test] = verdict
    tests = {test: None for known in worlds.values() for test in known}
    # A file that did not come to its tests in one run has them from another.
    files = {f"{test.partition('::')[0]}::" for test in tests if not test.endswith("::")}
    tests = {test: None for test in tests if test not in files}
    judged = {
        test: judge({world: known[test] for world, known in worlds.items() if test in known})
        for test in tests
    }
    return judged, dict(worlds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the report needs."""
    parser.add_argument("results", nargs="+", type=Path, help="of one backend")
    parser.add_argument("--reasons", type=Path, default=REASONS)
    parser.add_argument("--failed", action="store_true", help="name every test that failed")
    parser.add_argument("--compatibility", type=Path, help="write the table's results to a file")
    parser.add_argument(
        "--over", type=Path, metavar="FILE", help="an earlier one, of which other directories stay"
    )
    parser.add_argument("--machine", default="", help="that the tests ran on; default: this one")


def report(arguments: argparse.Namespace) -> int:
    """Print the verdicts; 1 when something fails for a reason that is not on the list."""
    documents = [read(path) for path in arguments.results]
    reasons = read_reasons(arguments.reasons)
    judged, worlds = judge_all(documents, reasons)
    for world, verdicts in sorted(worlds.items()):
        print(f"world {world}: {counts_text(Counter(one.outcome for one in verdicts.values()))}")
    counts = Counter(one.outcome for one in judged.values())
    claimed = counts["passed"] + counts["failed"]
    print(f"together: {len(judged)} tests: {counts_text(counts)}")
    print(f"{counts['passed'] / max(claimed, 1):.2%} of those that need nothing unclaimed pass")
    for kind in KINDS:
        named = Counter(one.reason for one in judged.values() if one.outcome == kind)
        print(f"\n{kind}: {KINDS[kind]}")
        for name, count in named.most_common():
            print(f"  {count:5} {name}")
    print("\nfailed:")
    for line in _groups(judged, every=arguments.failed):
        print(line)
    if arguments.compatibility:
        _write_compatibility(arguments, documents, judged, worlds)
    return 1 if counts["failed"] else 0


def _groups(judged: Mapping[str, Verdict], *, every: bool) -> Iterable[str]:
    """What failed, by message."""
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for test, verdict in judged.items():
        if verdict.outcome == "failed":
            groups[test.partition("::")[0], verdict.where, verdict.reason].append(test)
    for (_, where, message), tests in sorted(groups.items(), key=lambda one: -len(one[1])):
        yield f"  {len(tests):4} {tests[0]} | {where} | {message}"
        if every:
            yield from (f"       {test}" for test in tests[1:])


def _short(message: str) -> str:
    """A message without what differs from run to run."""
    line = re.sub(r"0x[0-9a-f]+|\d+", "#", message.strip()).replace("\n", " ")
    # Paths are of one machine.
    return re.sub(r"(?<=['\" ])/[^'\" ]*", "PATH", line)[:100] or "no message"


def _write_compatibility(
    arguments: argparse.Namespace,
    documents: Sequence[Mapping[str, Any]],
    judged: Mapping[str, Verdict],
    worlds: Mapping[int, Mapping[str, Verdict]],
) -> None:
    """Rows for docs/compatibility.md: by directory, number of ranks, outcome and reason."""
    sys.path.append(str(ROOT / "tools"))
    from compatibility_results import Row, new_run
    from compatibility_results import read as read_rows

    first = documents[0]
    rows: Counter[tuple[str, str, str, str]] = Counter()
    named = {f"world {world}": verdicts for world, verdicts in sorted(worlds.items())}
    for case, verdicts in {**named, "together": judged}.items():
        for test, one in verdicts.items():
            directory = Path(test.partition("::")[0]).parent.as_posix()
            rows[directory if directory != "." else "(top)", case, one.outcome, one.reason] += 1
    command = f"make megatron-suite MEGATRON=PATH WORLD={','.join(map(str, sorted(worlds)))}"
    new = [
        Row(first["megatron"], directory, case, outcome, count, reason)
        for (directory, case, outcome, reason), count in sorted(rows.items())
    ]
    made = new_run("suite", first["backend"], command, new)
    machine = arguments.machine or made.machine
    if arguments.over:
        earlier, mine = read_rows(arguments.over), {row.subject for row in new}
        kept = [row for row in earlier.rows if row.subject not in mine]
        new += kept
        machine = _machines(machine, earlier, [*dict.fromkeys(row.subject for row in kept)])
    versions = {**made.versions, "torch": first["torch"]}
    replace(made, versions=versions, machine=machine, rows=new).write(arguments.compatibility)


def _machines(machine: str, earlier: Run, kept: list[str]) -> str:
    """Where all rows are from: those of ``earlier`` that are kept, and what it kept itself."""
    own, *older = earlier.machine.split("; on ")
    parts = [machine]
    named = []
    for part in older:
        where, _, names = part.rpartition(": ")
        known = [one for one in names.split(", ") if one in kept]
        kept = [one for one in kept if one not in known]
        named += [f"{where}: {', '.join(known)}"] if known else []
    torch = earlier.versions["torch"]
    where = f"{earlier.date[:10]} at {earlier.commit} with torch {torch}, {own}"
    parts += [f"{where}: {', '.join(kept)}"] if kept else []
    return "; on ".join(parts + named)
