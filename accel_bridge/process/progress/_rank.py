"""The progress line under a launcher that is not ours: ``torchrun -m accel_bridge.run``.

Every rank of a machine writes into one log; the first of them leaves a watcher behind, which has
the terminal and shows the log until that rank ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from accel_bridge.process import log as bridge_log
from accel_bridge.process.outputs import OutputError, mapped
from accel_bridge.process.progress._command import LOOK, PREFIX, SETTLE, SUFFIX, Lines
from accel_bridge.process.progress._lines import FACTS


def join() -> None:
    """Send this rank's output to the machine's log; local rank 0 sees to the terminal.

    Where no log can be written, everything stays on the terminal, and a line says why.
    """
    path = Path(f"{PREFIX}{_started(os.getppid())}-{os.getppid()}{SUFFIX}")
    try:
        with mapped(path, "the log"):
            log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    except OutputError as error:
        bridge_log.warn(f"no progress line: {error.what} ({error.evidence[0]})")
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _leave_watcher(path)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)
    os.environ[FACTS] = "1"


def _started(pid: int) -> str:
    """When a process was started; the ranks of one launcher agree on it."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(
        int(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime ")
    )
    seconds = boot + ticks / os.sysconf("SC_CLK_TCK")
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))


def _leave_watcher(path: Path) -> None:
    """A grandchild follows the log: the rank may wait for all of its children."""
    rank = os.pidfd_open(os.getpid())
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # it ends with the rank
            with contextlib.suppress(Exception):  # a watcher must disturb nobody
                _show(path, rank)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(rank)


def _show(path: Path, rank: int) -> None:
    from accel_bridge.process.progress.screen import Screen

    screen = Screen()
    screen.say(f"{bridge_log.PREFIX} log: {path}")
    with path.open("rb") as written:
        lines, ended = Lines(written), False
        while not ended:
            ended = bool(select.select([rank], [], [], LOOK)[0])
            if ended:
                time.sleep(SETTLE)
            for line in lines.new(last=ended):
                screen.feed(line)
            screen.tick()
    screen.close(int(screen.has_failed()))
