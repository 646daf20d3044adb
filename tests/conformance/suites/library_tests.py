"""Run a library's own tests against its shim.

    python tests/conformance/suites/library_tests.py transformer_engine_torch CHECKOUT
        [--files 'test_num*'] [--sample 50]

CHECKOUT is a source tree of the version that the shim claims (``git clone --branch v2.13``);
nothing of it is imported but its tests. Each file runs in a process of its own, with the bridge
active and a time limit for each test; a process that dies is started again behind the test that
killed it. Failures are compared with the reviewed list reasons/LIBRARY.toml:

    [[expected]]
    tests = "test_numerics.py::test_a[*fp8*]"   # file::test; * stands for anything
    kind = "needs hardware"                     # or another of KINDS below
    why = "MXFP8 needs a Blackwell GPU"
    on = ["cpu"]                                # backends; all where it is left out

A list may start with ``claimed``: patterns of the files whose tests should pass; it does not judge
the others. ``the test's own`` is a mistake or a tolerance of the test, on any machine.

The exit status is 1 when a test fails that is not on the list, or one passes that is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from library_suites import LISTS, SUITES, Suite
from suite_outcomes import counts_text, matches

#: Why a test may fail.
KINDS: Final = (
    "needs hardware",
    "needs a package",
    "asserts CUDA internals",
    "refused",
    "the test's own",
    "bug",
    "not claimed",
)
#: What a list that names what it claims says of every other file.
OUTSIDE: Final = KINDS[-1]
#: Of these kinds, tests may pass as well.
_LOOSE: Final = ("the test's own", OUTSIDE)


@dataclass(frozen=True, slots=True)
class Expected:
    """One entry of a reviewed list: the tests that a pattern names may fail.

    :param claimed: it covers all tests but those in files of these patterns.
    """

    tests: str
    kind: str
    why: str
    on: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()

    def covers(self, test: str, backend: str) -> bool:
        """Whether ``test`` (file::name) may fail on a backend."""
        file = test.partition("::")[0]
        return (
            (not self.on or backend in self.on)
            and matches(self.tests, test)
            and not any(matches(pattern, file) for pattern in self.claimed)
        )


@dataclass(slots=True)
class Result:
    """One test: ``passed``, ``failed`` or ``skipped``, and why."""

    test: str
    outcome: str
    seconds: float
    message: str = ""
    expected: Expected | None = None

    @property
    def wrong(self) -> str:
        """What is wrong with it; empty when nothing is."""
        if self.outcome == "failed" and self.expected is None:
            return "fails and is not on the list"
        entry = self.expected
        if self.outcome == "passed" and entry is not None and entry.kind not in _LOOSE:
            return f"passes, but the list says {entry.kind!r}: {entry.why}"
        return ""


def read_list(path: Path) -> list[Expected]:
    """The reviewed list.

    :raises ValueError: an entry lacks something, or its kind is not one of :data:`KINDS`.
    """
    import tomllib

    document = tomllib.loads(path.read_text(encoding="utf-8"))
    entries = []
    for entry in document.get("expected", []):
        if not {"tests", "kind", "why"} <= entry.keys() <= {"tests", "kind", "why", "on"}:
            raise ValueError(f"{path}: {entry} needs tests, kind and why, and may have on")
        if entry["kind"] not in KINDS or "::" not in entry["tests"]:
            raise ValueError(f"{path}: {entry} has a kind or tests that cannot be")
        entries.append(Expected(**{**entry, "on": tuple(entry.get("on", ()))}))
    if claimed := tuple(document.get("claimed", ())):
        entries.append(Expected("*", OUTSIDE, "in no file that the list claims", claimed=claimed))
    return entries


def judged(results: Iterable[Result], entries: Sequence[Expected], backend: str) -> list[Result]:
    """The results with the entry of the list that covers each."""
    found = list(results)
    for result in found:
        covering = (entry for entry in entries if entry.covers(result.test, backend))
        result.expected = next(covering, None)
    return found


def run_files(
    suite: Suite, directory: Path, files: Sequence[Path], arguments: argparse.Namespace
) -> list[Result]:
    """Run files of tests, one where the suite does not say more, in processes of their own."""
    results: dict[str, Result] = {}
    name = files[0].relative_to(directory).as_posix()
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "results"
        if suite.inside:
            directory = Path(scratch) / "tests"
            (directory / name).parent.mkdir(parents=True)
            files = [Path(shutil.copy(files[0], directory / name))]
        if suite.bridge:
            # Pythons that tests start, torchrun's above all, have the bridge too.
            (Path(scratch) / "sitecustomize.py").write_text("import accel_bridge.auto\n")
        imports = ((arguments.checkout / one).resolve() for one in suite.imports)
        paths = [scratch, Path(__file__).resolve().parent, directory, *imports]
        own = os.environ.get("PYTHONPATH", "")  # the caller's, behind ours
        environ = {
            **os.environ,
            **{key: text.format(scratch=scratch) for key, text in suite.environ.items()},
            **suite.needs(name, "environ"),
            "PYTHONPATH": os.pathsep.join(filter(None, [*map(str, paths), own])),
            "ACCEL_BRIDGE_LIBRARIES": "none" if arguments.real else suite.shims,
            "ACCEL_BRIDGE_LOG": "quiet",
            "ACCEL_BRIDGE_BACKEND": arguments.backend,
            "LIBRARY_TESTS": json.dumps(
                {
                    "log": str(log),
                    "sample": arguments.sample,
                    "seed": arguments.seed,
                    "budget": arguments.budget,
                    **{
                        kind: {} if arguments.real else suite.needs(name, kind)
                        for kind in ("absent", "borrowed", "given")
                    },
                    "preload": suite.preload,
                    "tree": str(arguments.checkout.resolve()),
                }
            ),
        }
        if words := suite.before(name):
            script = [sys.executable, str(files[0]), *words]
            subprocess.run(script, cwd=scratch, env=environ, capture_output=True, check=False)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "library_tests_plugin"]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
        command += ["--continue-on-collection-errors", *suite.options]
        command += ["-c", os.devnull, "--rootdir", str(directory)]
        command += ["--timeout", str(arguments.limit), "-k", arguments.k, *map(str, files)]
        for _ in range(arguments.restarts + 1):
            done = subprocess.run(
                command, cwd=scratch, env=environ, capture_output=True, text=True, check=False
            )
            started, finished = read_log(log)
            results |= finished
            killed = [test for test in started if test not in results]
            for test in killed:
                died = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
                results[test] = Result(test, "failed", 0.0, died)
            if not killed:
                break
        if not results and done.returncode not in (0, 5):
            text = f"pytest ended with {done.returncode}: {done.stdout[-600:]}{done.stderr[-600:]}"
            results[f"{name}::"] = Result(f"{name}::", "failed", 0.0, text)
    return list(results.values())


def read_log(log: Path) -> tuple[list[str], dict[str, Result]]:
    """(tests that were started, results of those that ended) of a plugin's log."""
    started, finished = [], {}
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    for line in lines:
        entry: dict[str, Any] = json.loads(line)
        if "outcome" not in entry:
            started.append(entry["test"])
        elif entry["test"] not in finished or entry["outcome"] == "failed":
            finished[entry["test"]] = Result(**entry)
    return started, finished


def main(words: Sequence[str]) -> int:
    """Run the tests and print what is wrong; the exit status."""
    parser = argparse.ArgumentParser(prog="library_tests.py", description=__doc__.split("\n")[0])
    parser.add_argument("library", choices=SUITES)
    parser.add_argument("checkout", type=Path, help="a source tree of the library")
    parser.add_argument(
        "--files", nargs="+", metavar="PATTERN", help="default: those whose features are served"
    )
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="as pytest's")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="N tests of each file")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--limit", type=float, default=60, metavar="SECONDS", help="for a test")
    parser.add_argument(
        "--budget", type=float, default=0, metavar="SECONDS", help="for a file; the rest is left"
    )
    parser.add_argument("--restarts", type=int, default=20, metavar="N", help="of a file's process")
    parser.add_argument("--backend", default="cpu", help="default: cpu")
    parser.add_argument("--real", action="store_true", help="test the real library instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    arguments = parser.parse_args(words)
    suite = SUITES[arguments.library]
    directory = (arguments.checkout / suite.directory).resolve()
    files = [
        path
        for path in sorted(directory.rglob(suite.pattern))
        if any(
            fnmatch(path.relative_to(directory).as_posix(), one)
            for one in arguments.files or suite.files
        )
    ]
    if not files:
        parser.error(f"no tests in {directory}: git clone {suite.source} and name its directory")
    entries = read_list(LISTS / f"{arguments.library}.toml")
    found: list[Result] = []
    for first in range(0, len(files), suite.together):
        batch = files[first : first + suite.together]
        began = time.monotonic()
        results = judged(run_files(suite, directory, batch, arguments), entries, arguments.backend)
        found += results
        counts = Counter(one.outcome for one in results)
        name = batch[0].relative_to(directory).as_posix()
        name += f" and {len(batch) - 1} more" if len(batch) > 1 else ""
        print(f"{name}: {counts_text(counts)}, {time.monotonic() - began:.0f} s", flush=True)
        for line in _lines(results):
            print(line, flush=True)
        if arguments.json:
            # After each, so that a run that is ended leaves what it found.
            document = {"library": arguments.library, "backend": arguments.backend}
            rows = [asdict(one) for one in found]
            arguments.json.write_text(json.dumps({**document, "tests": rows}, indent=1) + "\n")
    print(f"\n{summary(found)}")
    return 1 if any(one.wrong for one in found) else 0


def summary(found: Sequence[Result]) -> str:
    """Counts of all tests, and what share of those that are claimed passes."""
    outside = [one for one in found if one.expected and one.expected.kind == OUTSIDE]
    found = [one for one in found if not (one.expected and one.expected.kind == OUTSIDE)]
    counts = Counter(one.outcome for one in found)
    kinds = Counter(
        one.expected.kind for one in found if one.outcome == "failed" and one.expected is not None
    )
    kinds["not on the list"] = sum(
        one.outcome == "failed" and one.expected is None for one in found
    )
    claimed = counts["passed"] + kinds["bug"] + kinds["not on the list"]
    share = f"{counts['passed'] / claimed:.2%} of those that can pass" if claimed else "none"
    failed = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    rest = Counter(one.outcome for one in outside)
    return (
        f"{counts_text(counts)}: {share}"
        + (f"; failed: {failed}" if failed else "")
        + (f"; {OUTSIDE}: {counts_text(rest)}" if outside else "")
    )


def _lines(results: Iterable[Result]) -> Iterator[str]:
    """What is wrong, tests of one name and message together."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for one in results:
        if one.wrong:
            name = one.test.partition("[")[0]
            groups.setdefault((name, one.wrong, re.sub(r"\d+", "#", one.message)), []).append(one)
    for (name, wrong, _), alike in groups.items():
        first, times = alike[0], len(alike)
        which = first.test if times == 1 else f"{name} ({times} times, as {first.test})"
        message = first.message.strip().splitlines() or [""]
        yield f"  {which} {wrong}: {message[0][:150]}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
