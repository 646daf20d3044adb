"""Functions in processes of their own: what one raises, breaks or waits for stops no other.

The processes are forked, so this one must not have imported torch or a driver's library.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from accel_bridge.process.endings import ASKED
from accel_bridge.process.ranks import be_killed_with_parent

#: Processes at a time: most of them wait.
_WORKERS: Final = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call in a process of its own ended.

    :param value: what it returned; None where it failed.
    :param error: one line: why there is no value; None where there is one.
    :param details: its traceback, or the last lines that the process wrote to stderr.
    """

    value: Any
    error: str | None = None
    details: str = ""


@dataclass(slots=True)
class _Child:
    pid: int
    answer: int
    log: IO[bytes]
    ends: float
    limit: float
    received: bytes = b""


def call_all(
    calls: Mapping[str, tuple[Callable[[], Any], float]],
    ended: Callable[[str], object] = lambda name: None,
) -> dict[str, Outcome]:
    """Call each function in a process of its own, a few at a time.

    :param calls: name -> (function that returns what can be pickled, seconds it may take).
    :param ended: is told the name of each that has ended.
    """
    waiting = list(calls.items())
    running: dict[str, _Child] = {}
    outcomes: dict[str, Outcome] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < _WORKERS:
                    name, (function, seconds) = waiting.pop(0)
                    running[name] = child = _fork(function, seconds)
                    selector.register(child.answer, selectors.EVENT_READ, name)
                first = min(child.ends for child in running.values())
                for key, _ in selector.select(max(0.0, first - time.monotonic())):
                    child = running[key.data]
                    part = os.read(child.answer, 1 << 16)
                    child.received += part
                    if not part:
                        child.ends = float("-inf")  # it has closed its end
                for name, child in list(running.items()):
                    if child.ends <= time.monotonic():
                        del running[name]
                        selector.unregister(child.answer)
                        outcomes[name] = _outcome(child)
                        ended(name)
        finally:
            with _uninterrupted():
                for child in running.values():
                    _end(child)
    return {name: outcomes[name] for name in calls}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not leave processes behind."""
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _fork(function: Callable[[], Any], seconds: float) -> _Child:
    ours, theirs = os.pipe()
    log = tempfile.TemporaryFile()  # noqa: SIM115  (_end closes it)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        _work(function, theirs, log.fileno(), parent)
    os.close(theirs)
    return _Child(pid, ours, log, time.monotonic() + seconds, seconds)


def _work(function: Callable[[], Any], answer: int, log: int, parent: int) -> None:
    """In the child: call, answer, end."""
    try:
        os.setpgid(0, 0)  # so that what it starts ends with it
        be_killed_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        for number in ASKED:
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        sys.stdout = sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115
        try:
            outcome = Outcome(function())
        except BaseException as error:  # a SystemExit of a package, too
            line = " ".join(traceback.format_exception_only(error)[-1].split())
            outcome = Outcome(None, f"it raised {line}", traceback.format_exc())
        try:
            document = pickle.dumps(outcome)
        except Exception as error:
            document = pickle.dumps(Outcome(None, f"its answer cannot be passed on: {error}"))
        with open(answer, "wb") as pipe:
            pipe.write(document)
    finally:
        os._exit(0)


def _outcome(child: _Child) -> Outcome:
    status, log = _end(child)
    last = log.strip().splitlines()[-6:]
    if child.received and os.WIFEXITED(status):
        with contextlib.suppress(Exception):
            outcome: Outcome = pickle.loads(child.received)
            return outcome
    if child.ends != float("-inf"):
        return Outcome(None, f"it did not end in {child.limit:g} s", "\n".join(last))
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    why = f"killed by {signal.Signals(number).name}" if number else "it ended without an answer"
    return Outcome(None, why, "\n".join(last))


def _end(child: _Child) -> tuple[int, str]:
    """End the process and all that it has started; its status, and what it wrote."""
    if child.ends == float("-inf"):
        # It has answered or died: its status is its own, once it is there.
        _, status = os.waitpid(child.pid, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        for end in (os.killpg, os.kill):  # the group may not be there yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
    os.close(child.answer)
    with child.log:
        child.log.seek(0)
        return status, child.log.read(1 << 20).decode(errors="replace")
