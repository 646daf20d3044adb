"""Other people's tests with and without the bridge on the CPU: `make strangers`.

    python tests/conformance/strangers/run.py --environment VENV --sources DIRECTORY [SUITE ...]

Every suite runs twice in its environment: `pytest ...` and `accel-bridge run -- pytest ...`. No
test may differ but those that ask for a GPU by name. Exit status 1 if another does. The numbers go
to results.json, from which the table of docs/device.md is made (`make docs`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from suites import SUITES, Suite  # noqa: E402

RESULTS = HERE / "results.json"
#: What a test, or the reason that it was skipped for, says of a GPU.
GPU = re.compile(
    r"cuda|gpu|accelerator|multi[-_ ]?device|pin_memory|nccl|non[-_ ]cpu", re.IGNORECASE
)
#: A test that compares a tensor's device with the GPU's.
DEVICE = re.compile(r"== device\(type='cuda'")
SECONDS = 1800


@dataclass(frozen=True)
class Outcome:
    """How a test ended: passed, failed or skipped, and what it said."""

    status: str
    said: str = ""


def outcomes(report: Path) -> dict[str, Outcome]:
    """Test -> outcome, from pytest's own report."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        outcome = Outcome("passed")
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                said = f"{child.get('message', '')} {child.text or ''}"
                outcome = Outcome("skipped" if child.tag == "skipped" else "failed", said)
        found[name] = outcome
    return found


def run(
    suite: Suite, environment: Path, sources: Path, out: Path, bridge: bool
) -> dict[str, Outcome]:
    """One suite, once."""
    python = str(environment / "bin/python")
    report = out / f"{suite.name}-{'with' if bridge else 'without'}.xml"
    directory = sources / suite.name / suite.directory
    if suite.own:
        # Away from this repository's conftest.
        directory = out / "own"
        directory.mkdir(exist_ok=True)
        for path in suite.paths:
            shutil.copy(HERE / path, directory)
    report.unlink(missing_ok=True)
    words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    words += ["-o", "addopts=", "-o", "filterwarnings=", "-p", "no:randomly", "--timeout=120"]
    words += [*suite.paths, *(["-k", suite.chosen] if suite.chosen else [])]
    command = [python, "-m", "accel_bridge", "run", "--", *words] if bridge else words
    environ = {
        **{
            name: value for name, value in os.environ.items() if not name.startswith("ACCEL_BRIDGE")
        },
        **({"ACCEL_BRIDGE_BACKEND": "cpu"} if bridge else {}),
        "HF_HUB_OFFLINE": "1",
        # The CPU backend turns torch.compile off unless it is asked for.
        "TORCHDYNAMO_DISABLE": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(directory), str(sources / suite.name))),
    }
    with (out / f"{report.stem}.log").open("w") as log:
        subprocess.run(
            command,
            cwd=directory,
            env=environ,
            stdout=log,
            stderr=log,
            timeout=SECONDS,
            check=False,
        )
    if not report.exists():
        raise SystemExit(
            f"error: {suite.name}: pytest wrote no report\n"
            f"  evidence: {out / report.stem}.log\n  next: run its last command by hand"
        )
    return outcomes(report)


def compare(plain: dict[str, Outcome], ours: dict[str, Outcome]) -> dict[str, Any]:
    """A suite's numbers without the bridge, and what differs with it.

    ``same``: tests that ended alike; ``by_gpu``: tests that differ and name a GPU; ``different``:
    the others that do, those that only one run has too: id, without, with, what was said.
    """
    by_gpu, different = [], []
    missing = Outcome("missing")
    names = sorted(plain.keys() | ours.keys())
    for name in names:
        before, after = plain.get(name, missing), ours.get(name, missing)
        if before.status == after.status:
            continue
        if (
            GPU.search(name)
            or DEVICE.search(after.said)
            or (before.status == "skipped" and GPU.search(before.said))
        ):
            by_gpu.append(name)
        else:
            lines = (after.said or before.said).strip().splitlines()
            different.append((name, before.status, after.status, lines[0][:300] if lines else ""))
    count = Counter(one.status for one in plain.values())
    found = {status: count[status] for status in ("passed", "failed", "skipped")}
    same = len(names) - len(by_gpu) - len(different)
    return {**found, "same": same, "by_gpu": by_gpu, "different": different}


def version_of(environment: Path, name: str) -> str:
    """The installed version of a package."""
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    words = [str(environment / "bin/python"), "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main(words: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("strangers-results"))
    options = parser.parse_args(words)
    options.out.mkdir(parents=True, exist_ok=True)
    out, environment = options.out.absolute(), options.environment.absolute()
    kept: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    wrong = 0
    for suite in SUITES:
        if options.suites and suite.name not in options.suites:
            continue
        sources = options.sources.absolute()
        if not suite.own and not (sources / suite.name).is_dir():
            print(f"{suite.name}: not run: there is no {sources / suite.name}")
            continue
        plain, ours = (run(suite, environment, sources, out, bridge) for bridge in (False, True))
        result = compare(plain, ours)
        version = version_of(environment, suite.name)
        kept[suite.name] = {"suite": suite.name, "version": version, **result}
        RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        differ = result["different"]
        wrong += len(differ)
        print(
            f"{suite.name} {version}: {result['same']} alike, {len(result['by_gpu'])} ask for a "
            f"GPU, {len(differ)} differ",
            flush=True,
        )
        for name, before, after, said in differ:
            print(f"  {name}: {before} without, {after} with the bridge: {said}")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
