"""Run Megatron's own unit tests under the bridge, and judge every failure.

    python tests/conformance/suites/megatron_suite.py run CHECKOUT
        [FILE...] --world 8 --json results-8.json
    python tests/conformance/suites/megatron_suite.py report results-*.json

CHECKOUT is a Megatron-LM source tree. Where it holds no megatron/core, the installed one is
tested. FILE is a pattern below tests/unit_tests. Each file runs in process groups of its own, many
files at a time, with a limit for each test. The report judges the results by
the reviewed list megatron_suite.toml (megatron_suite_report.py says how), and
its exit status is 1 when a test fails for a reason that is not on it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import gzip
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from megatron_suite_ranks import Job, supervise
from megatron_suite_report import REASONS, add_arguments, report
from megatron_suite_small import read_small
from suite_outcomes import counts_text

from accel_bridge.process.child import environment

TESTS: Final = "tests/unit_tests"
#: What most tests import; loaded once, before the forks.
LIBRARIES: Final = """
torch torch._dynamo torch.distributed.checkpoint torch.distributed.tensor pytest
transformers.models.auto
""".split()
#: Below those that the system hands out by itself.
_PORTS: Final = range(10_000, 32_000)
#: Seconds between two writes of what is known so far.
WRITE: Final = 15.0
_PROXIES: Final = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")


def run(arguments: argparse.Namespace) -> int:
    """Run files; write the outcome of every test."""
    checkout: Path = arguments.checkout.resolve()
    patterns = arguments.files or ["*"]
    files = [
        path.relative_to(checkout).as_posix()
        for path in sorted((checkout / TESTS).rglob("test_*.py"))
        if any(fnmatch(path.relative_to(checkout / TESTS).as_posix(), one) for one in patterns)
    ]
    if not files:
        sys.exit(f"no tests below {checkout / TESTS} match {' '.join(patterns)}")
    environ = {
        "ACCEL_BRIDGE_LOG": "quiet",
        "ACCEL_BRIDGE_BACKEND": arguments.backend,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")])),
        # Unset, it means to some tests that PyTorch is that of 2024, and they skip themselves.
        "NVIDIA_PYTORCH_VERSION": os.environ.get("NVIDIA_PYTORCH_VERSION", "26.01"),
        # No download, nor waiting for one: a result must not depend on it.
        **dict.fromkeys(_PROXIES, "http://127.0.0.1:9"),
        "HF_HUB_OFFLINE": "1",
        "no_proxy": "localhost,127.0.0.1",
    }
    world = str(arguments.world)
    ranks = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "RANK": "0", "LOCAL_RANK": "0"}
    os.environ.update({**environ, **ranks})
    bridge = not arguments.without_bridge
    _load(checkout, _modules(checkout), bridge=bridge, cold=arguments.cold)
    began = time.time()
    deadline = began + arguments.seconds
    chosen = _chosen(arguments.tests) if arguments.tests else {}
    if chosen:
        known_files = set(files)
        files = [file for file in chosen if file in known_files]
    parts = _parts(files, chosen, arguments)
    if bridge:
        # What tests spawn has it, too: a rank waits for ever for its dead writer of checkpoints.
        environ = environment(environ)
    small = {} if arguments.full_size else read_small(REASONS, checkout / TESTS, arguments.backend)
    with tempfile.TemporaryDirectory() as name:
        jobs = [
            Job(
                checkout=checkout,
                file=file,
                world=arguments.world,
                activate=bridge and arguments.cold,
                limit=arguments.limit,
                deadline=deadline,
                scratch=Path(name) / str(number),
                log=Path(name) / f"{number}.log",
                environ=environ,
                part=part,
                only=chosen.get(file, frozenset()),
                small=small,
            )
            for number, (file, part) in enumerate(parts)
        ]
        # What has been found is written also when the run is stopped, or killed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        written = began
        try:
            for _ in _run_all(jobs, arguments, deadline):
                if time.time() > written + WRITE:
                    written = time.time()
                    _write(jobs, arguments, began)
        except (KeyboardInterrupt, SystemExit) as stop:
            print(f"stopped: {stop}", file=sys.stderr)
        counts = _write(jobs, arguments, began)
    print(f"world {arguments.world}, {time.time() - began:.0f} s: {counts_text(counts)}")
    return 0


def _chosen(path: Path) -> dict[str, frozenset[str]]:
    """File -> its tests, of a list with one ``file::test`` in each line."""
    chosen: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        chosen.setdefault(f"{TESTS}/{line.partition('::')[0]}", set()).add(f"{TESTS}/{line}")
    return {file: frozenset(tests) for file, tests in chosen.items()}


def _write(jobs: Iterable[Job], arguments: argparse.Namespace, began: float) -> Counter[str]:
    """Write what is known so far; outcome -> number of tests."""
    tests = _results(jobs)
    document = {
        "world": arguments.world,
        "backend": arguments.backend,
        "bridge": not arguments.without_bridge,
        "megatron": arguments.megatron or _version(arguments.checkout.resolve()),
        "torch": importlib.import_module("torch").__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
        "seconds": round(time.time() - began),
        "tests": tests,
    }
    if arguments.json:
        data = json.dumps(document).encode()
        data = gzip.compress(data) if arguments.json.suffix == ".gz" else data
        half = arguments.json.with_name(f"{arguments.json.name}.half")
        half.write_bytes(data)
        half.replace(arguments.json)
    return Counter(one["outcome"] for one in tests.values())


def _modules(checkout: Path) -> list[str]:
    """Megatron's modules that its tests import."""
    found: set[str] = set()
    for path in (checkout / TESTS).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module)
    return sorted(name for name in found if name.startswith("megatron."))


def _load(checkout: Path, modules: Iterable[str], *, bridge: bool, cold: bool) -> None:
    """Activate the bridge and import what every rank needs, so that it can be forked."""
    import torch

    sys.path.insert(0, str(checkout))
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if cold:
        return
    started = torch.cuda.is_initialized
    if bridge:
        importlib.import_module("accel_bridge.auto")
    for name in modules:
        # What a module lacks here, its tests will say.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # Compiled at its first use. A rank that is stopped meanwhile leaves a lock for ever.
    compile_extension = getattr(
        sys.modules.get("megatron.core.tensor_parallel.random"), "_get_share_storage", None
    )
    if compile_extension is not None:
        with contextlib.suppress(OSError, RuntimeError, ImportError):
            compile_extension()
    if started():
        # CUDA survives no fork: every rank imports Megatron by itself.
        os.execv(sys.executable, [sys.executable, *sys.argv, "--cold"])
    # The collector would write to everything that the forks share, and so copy it.
    gc.collect()
    gc.freeze()


def _parts(
    files: Sequence[str], only: Mapping[str, frozenset[str]], arguments: argparse.Namespace
) -> list[tuple[str, tuple[int, int]]]:
    """(file, (part, parts)), the longest files first, in several parts."""
    times = {file: len(only.get(file, ())) or _guess(arguments.checkout / file) for file in files}
    parts = {file: max(1, round(times[file] / arguments.part)) for file in files}
    chosen = [(file, (part, parts[file])) for file in files for part in range(parts[file])]
    return chosen if only else sorted(chosen, key=lambda one: -times[one[0]] / parts[one[0]])


def _guess(path: Path) -> float:
    """About how many tests a file has, from its source: a second each."""
    tests = 0.0
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            count = 1
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and len(call.args) > 1:
                    values = getattr(call.args[1], "elts", ())
                    count *= max(1, len(values))
            tests += count
    return tests


def _run_all(jobs: Sequence[Job], arguments: argparse.Namespace, deadline: float) -> Iterator[Job]:
    """A supervisor for each job, some at a time; each job when it has ended."""
    waiting = list(jobs)
    free = list(range(arguments.jobs))
    running: dict[int, tuple[int, Job]] = {}
    while waiting or running:
        while waiting and free and time.time() < deadline:
            job, slot = waiting.pop(0), free.pop(0)
            job.scratch.mkdir()
            first, last = arguments.ports
            share = (last - first) // arguments.jobs
            job.ports = (first + slot * share, share)
            if arguments.devices:
                groups = arguments.devices // arguments.world
                first = slot % groups * arguments.world
                job.devices = list(range(first, first + arguments.world))
            process = os.fork()
            if not process:
                status = 1
                try:
                    # Its ranks end with it.
                    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
                    supervise(job)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            running[process] = (slot, job)
        if not running:
            return
        try:
            process, _ = os.wait()
        except (KeyboardInterrupt, SystemExit):
            for process in running:
                os.kill(process, signal.SIGTERM)
                os.waitpid(process, 0)
            raise
        slot, job = running.pop(process)
        free.append(slot)
        counts = Counter(one["outcome"] for one in _results([job]).values())
        print(f"{job.file} {job.part}: {counts_text(counts)}", flush=True)
        yield job


def _results(jobs: Iterable[Job]) -> dict[str, dict[str, Any]]:
    """Test (file::name) -> how it ended."""
    tests: dict[str, dict[str, Any]] = {}
    unknown = {"outcome": "not run", "seconds": 0.0, "message": "", "where": ""}
    for job in jobs:
        lines = job.log.read_text(encoding="utf-8").splitlines() if job.log.is_file() else []
        for line in lines:
            event = json.loads(line)
            for test in event.get("collected", ()):
                tests.setdefault(test.removeprefix(f"{TESTS}/"), unknown)
            if "outcome" in event:
                tests[event.pop("test").removeprefix(f"{TESTS}/")] = event
        if not lines:
            tests[f"{job.file.removeprefix(f'{TESTS}/')}::"] = unknown
    return tests


def _version(checkout: Path) -> str:
    """The version of the Megatron that is tested."""
    from importlib.metadata import version

    path = checkout / "megatron/core/package_info.py"
    if not path.is_file():
        return version("megatron-core")
    found = dict(re.findall(r"^(MAJOR|MINOR|PATCH) = (\d+)", path.read_text(), re.M))
    return ".".join(found[name] for name in ("MAJOR", "MINOR", "PATCH"))


def parser() -> argparse.ArgumentParser:
    """Both commands and their options."""
    parser = argparse.ArgumentParser(prog="megatron_suite.py", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="run tests on one number of ranks")
    one.add_argument("checkout", type=Path)
    one.add_argument("files", nargs="*", metavar="FILE")
    one.add_argument("--world", type=int, default=1, help="ranks of each process group")
    one.add_argument("--jobs", type=int, default=2, help="files at a time")
    one.add_argument(
        "--ports",
        type=int,
        nargs=2,
        default=(_PORTS.start, _PORTS.stop),
        metavar=("FIRST", "LAST"),
        help="that groups meet at; two runs on one machine need ranges of their own",
    )
    one.add_argument("--limit", type=float, default=240, metavar="SECONDS", help="for a test")
    one.add_argument("--seconds", type=float, default=1e9, help="for everything")
    one.add_argument("--backend", default="cpu")
    one.add_argument("--devices", type=int, default=0, help="accelerators to spread the groups on")
    one.add_argument("--without-bridge", action="store_true")
    one.add_argument("--megatron", default="", help="the version, where it cannot be read")
    one.add_argument(
        "--tests", type=Path, metavar="FILE", help="run only these, a file::test in each line"
    )
    one.add_argument("--part", type=float, default=30, help="seconds of a divided file's part")
    one.add_argument("--full-size", action="store_true", help="without the list's small models")
    one.add_argument("--cold", action="store_true", help="let every rank import Megatron itself")
    one.add_argument("--json", type=Path, metavar="FILE[.gz]")
    one.set_defaults(function=run)
    two = commands.add_parser("report", help="judge results of several runs together")
    add_arguments(two)
    two.set_defaults(function=report)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run or report; the exit status."""
    arguments = parser().parse_args(words)
    return int(arguments.function(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
