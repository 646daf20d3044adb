"""One file of Megatron's tests on one process group: ranks that a supervisor starts and watches.

Every rank is a fork of a process that has activated the bridge and imported Megatron; it collects
the file by itself. After each test a rank waits until all ranks have ended it: one that
failed alone has left the others in a collective, and the whole group is started again behind that
test. So is a group with a test that takes too long or a rank that dies.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from megatron_suite_small import Edits, Small
from suite_outcomes import said

#: Seconds that ranks get to end a test in which another one has failed.
GRACE: Final = 5.0
#: Seconds for the imports and the collection of a file.
START: Final = 120.0
#: Before the message of a test that Megatron marks as flaky.
FLAKY: Final = "[marked flaky] "


@dataclass(slots=True)
class Job:
    """One file, or a part of one, on ``world`` ranks.

    :param activate: the ranks activate the bridge themselves.
    :param part: (number, parts): which part of the file's tests.
    :param only: names of the tests to run; all where it is empty.
    :param ports: (first, count) of those that its groups meet at, one after the other.
    :param small: file -> what is written otherwise in it.
    :param devices: accelerators that the ranks see; the machine's where it is empty.
    """

    checkout: Path
    file: str
    world: int
    activate: bool
    limit: float
    deadline: float
    scratch: Path
    log: Path
    environ: dict[str, str]
    part: tuple[int, int] = (0, 1)
    only: frozenset[str] = frozenset()
    small: Mapping[str, Edits] = field(default_factory=dict)
    devices: list[int] = field(default_factory=list)
    ports: tuple[int, int] = (10_000, 100)
    port: int = 0


@dataclass(slots=True)
class _Rank:
    """A living rank, as its supervisor sees it."""

    process: int
    events: int
    go: int
    buffer: bytes = b""
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    alive: bool = True


class _Record:
    """What is known of a file's tests; every line of it is in the log at once."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.names: list[str] = []
        self.done: set[str] = set()
        self.collected = False

    def _write(self, **event: object) -> None:
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def add(self, names: Sequence[str]) -> None:
        """Tests that a rank has found."""
        new = [one for one in names if one not in self.names]
        self.names += new
        if new or not self.collected:
            self._write(collected=new)
        self.collected = True

    def left(self) -> str:
        """A test that has not ended; empty when there is none."""
        return next((one for one in self.names if one not in self.done), "")

    def conclude(
        self, test: str, outcome: str, message: str, where: str = "", seconds: float = 0.0
    ) -> None:
        """How a test ended."""
        self.done.add(test)
        self._write(
            test=test, outcome=outcome, message=message, where=where, seconds=round(seconds, 2)
        )


class Ranks:
    """The pytest plugin of one rank: reports each test, then waits for the supervisor's word."""

    def __init__(self, events: int, go: int, job: Job, done: frozenset[str]) -> None:
        self._events, self._go, self._job, self._done = events, go, job, done
        self._reports: list[pytest.TestReport] = []

    def _tell(self, **event: object) -> None:
        os.write(self._events, (json.dumps(event) + "\n").encode())

    def pytest_sessionstart(self) -> None:
        """Smaller models, where the list has them."""
        Small(self._job.small).install()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The chosen tests, without those of an earlier group."""
        if self._job.only:
            items[:] = [item for item in items if item.nodeid in self._job.only]
        number, parts = self._job.part
        first, last = (len(items) * end // parts for end in (number, number + 1))
        items[:] = items[first:last]
        self._tell(collected=[item.nodeid for item in items])
        items[:] = [item for item in items if item.nodeid not in self._done]
        if items:
            _initialize()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported, or that skips itself, counts as one test."""
        if report.outcome != "passed" and f"{report.nodeid}::" not in self._done:
            name = f"{report.nodeid}::"
            self._tell(collected=[name])
            self._tell(test=name)
            self._end(name, report.outcome, 0.0, report)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """One test, from its set-up to the word that all ranks have ended it."""
        # Upstream runs these in a second pass, with this option.
        item.config.option.experimental = item.get_closest_marker("experimental") is not None
        self._reports = []
        # Megatron's CI leaves out what is marked so.
        flaky = any(map(item.get_closest_marker, ("flaky_in_dev", "flaky")))
        self._tell(test=item.nodeid, flaky=flaky)
        result = yield
        seconds = sum(one.duration for one in self._reports)
        failed = [one for one in self._reports if one.outcome == "failed"]
        skipped = [one for one in self._reports if one.outcome == "skipped"]
        outcome = "failed" if failed else "skipped" if skipped else "passed"
        self._end(item.nodeid, outcome, seconds, (failed or skipped or [None])[0], flaky)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the reports of the test that runs."""
        self._reports.append(report)

    def _end(
        self, test: str, outcome: str, seconds: float, report: Any, flaky: bool = False
    ) -> None:
        message, where = said(report)
        message = FLAKY + message if flaky else message
        self._tell(
            test=test, outcome=outcome, seconds=round(seconds, 2), message=message, where=where
        )
        os.read(self._go, 1)
        _destroy_groups()


def _initialize() -> None:
    """Start the process group, which most tests find started by those before them.

    Megatron's CI runs many files in one process. Some tests skip themselves where it is missing.
    """
    _share_loop()
    with contextlib.suppress(ImportError, AttributeError):
        utilities = importlib.import_module("tests.unit_tests.test_utilities")
        utilities.Utils.initialize_distributed()


def _share_loop() -> None:
    """Gloo's groups share one event loop.

    A loop wakes 100 times a second: those of hundreds of forgotten groups leave no time for tests.
    """
    from torch.distributed import Store, distributed_c10d

    gloo = distributed_c10d.ProcessGroupGloo
    device = gloo.create_default_device()

    def group(store: Store, rank: int, size: int, timeout: timedelta, **_: object) -> Any:
        options = gloo._Options()
        options._devices, options._timeout = [device], timeout
        return gloo(store, rank, size, options)

    vars(distributed_c10d)["ProcessGroupGloo"] = group


def _destroy_groups() -> None:
    """Destroy the gloo groups that a test has forgotten: each keeps three threads.

    Megatron's own destroy_model_parallel only forgets its groups, and a file makes thousands.
    Those of a mesh stay: PyTorch keeps meshes, and finds their groups by name.
    """
    import torch.distributed as dist

    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not dist.is_initialized() or dist.get_backend() != "gloo":
        return
    if not state.model_parallel_is_initialized():
        # Not isinstance: it asks lazy modules for their class, which imports them.
        meshes = [one for one in gc.get_objects() if type(one) is dist.DeviceMesh]
        named = {name for mesh in meshes for name in getattr(mesh, "_dim_group_names", ())}
        for group in list(dist.distributed_c10d._world.pg_map):
            if group is not dist.group.WORLD and group.group_name not in named:
                dist.destroy_process_group(group)


def supervise(job: Job) -> None:
    """Run a file until every test has ended; write an event for each to ``job.log``."""
    record = _Record(job.log)
    while time.time() < job.deadline:
        _choose_port(job)
        ranks = [_start(job, rank, frozenset(record.done)) for rank in range(job.world)]
        try:
            finished = _watch(job, ranks, record)
        finally:
            for rank in ranks:
                _kill(rank)
        if finished:
            return


def _choose_port(job: Job) -> None:
    """Give a new group a port of its own to meet at.

    Ports that the system hands out are handed out again to others before the group listens.
    """
    first, count = job.ports
    for _ in range(count):
        job.port = (job.port + 1) % count
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", first + job.port))
            job.environ["MASTER_PORT"] = str(first + job.port)
            break


def _watch(job: Job, ranks: Sequence[_Rank], record: _Record) -> bool:
    """Follow a group; whether nothing is left to run."""
    test, began, limit, failing_since, mark = "", time.time(), START, 0.0, ""
    before = len(record.done)
    while True:
        now = time.time()
        ends = [rank.ended.get(test) for rank in ranks]
        failed = [one for one in ends if one and one["outcome"] == "failed"]
        if test and all(ends):
            passed = [one for one in ends if one["outcome"] == "passed"]
            record.conclude(**(failed or passed or ends)[0])
            if failed and len(failed) < len(ranks):
                return False
            for rank in ranks:
                with contextlib.suppress(OSError):
                    os.write(rank.go, b".")
            test, began, limit, failing_since = "", now, START, 0.0
            failed = []
        gone = [rank for rank in ranks if not rank.alive and test not in rank.ended]
        if not test and len(gone) == len(ranks):
            if not record.collected:
                record.conclude(f"{job.file}::", "failed", f"pytest did not start: {_tail(job)}")
            left = record.left()
            if left and len(record.done) == before:
                record.conclude(left, "failed", f"pytest ended before it: {_tail(job)}")
            return not left
        if test and gone:
            message = f"a rank ended with {_status(gone[0])}: {_tail(job)}"
            record.conclude(test, "failed", mark + message, "", now - began)
            return False
        failing_since = failing_since or (now if failed else 0.0)
        if failing_since and now > failing_since + GRACE:
            record.conclude(**failed[0])
            return False
        if now > began + limit:
            late = test or record.left() or f"{job.file}::"
            message = f"{mark if test else ''}no end within {limit:.0f} s"
            record.conclude(late, "failed", message, "", limit)
            return False
        if now > job.deadline:
            return True
        for event in _events(ranks, 0.1 if failing_since else 0.5):
            if "collected" in event:
                record.add(event["collected"])
            elif "outcome" not in event and not test:
                test, began, limit = event["test"], time.time(), job.limit
                mark = FLAKY if event.get("flaky") else ""


def _events(ranks: Sequence[_Rank], seconds: float) -> Iterator[dict[str, Any]]:
    """What the ranks have said within ``seconds``."""
    living = {rank.events: rank for rank in ranks if rank.alive}
    ready, _, _ = select.select(list(living), [], [], seconds) if living else ([], [], [])
    for descriptor in ready:
        rank = living[descriptor]
        data = os.read(descriptor, 1 << 20)
        rank.alive = bool(data)
        *lines, rank.buffer = (rank.buffer + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "outcome" in event:
                rank.ended[event["test"]] = event
            yield event


def _start(job: Job, number: int, done: frozenset[str]) -> _Rank:
    """Fork a rank."""
    events, tell = os.pipe()
    wait, go = os.pipe()
    process = os.fork()
    if process:
        os.close(tell)
        os.close(wait)
        return _Rank(process, events, go)
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(events)
        os.close(go)
        output = os.open(job.scratch / f"rank{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for standard in (1, 2):
            os.dup2(output, standard)
        os.chdir(job.scratch)
        os.environ.update(job.environ)
        for name in ("RANK", "LOCAL_RANK"):
            os.environ[name] = str(number)
        if job.devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.devices))
        if job.activate:
            import accel_bridge.auto  # noqa: F401
        words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:timeout"]
        words += ["-p", "no:xdist", "-c", os.devnull, "--rootdir", str(job.checkout)]
        # Else pytest lists every directory from the root of the disk on.
        words += ["--confcutdir", str(job.checkout)]
        words += ["--tb", "short", "--basetemp", str(job.scratch / f"tmp{number}")]
        words += ["-o", "python_files=test_*.py", str(job.checkout / job.file)]
        plugin = Ranks(tell, wait, job, done)
        status = int(pytest.main(words, plugins=[plugin]))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _kill(rank: _Rank) -> None:
    """End a rank and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(rank.process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(rank.process, 0)
    for descriptor in (rank.events, rank.go):
        os.close(descriptor)


def _status(rank: _Rank) -> str:
    """How a dead rank ended."""
    with contextlib.suppress(ChildProcessError):
        for _ in range(20):
            process, status = os.waitpid(rank.process, os.WNOHANG)
            if process:
                code = os.waitstatus_to_exitcode(status)
                return f"signal {-code}" if code < 0 else f"status {code}"
            time.sleep(0.1)
    return "closed pipes"


def _tail(job: Job) -> str:
    """The last words of rank 0."""
    text = (job.scratch / "rank0").read_text(encoding="utf-8", errors="replace")
    return " | ".join(text.strip().splitlines()[-3:])[-400:]
