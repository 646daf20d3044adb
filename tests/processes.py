"""Processes that tests wait for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any


def run_group(
    command: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    output: IO[Any],
    wait: Callable[[subprocess.Popen[bytes]], int],
) -> int | None:
    """Status of a command, None when it took longer; what it started ends with it.

    :param output: a file that gets both of its streams.
    :param wait: gives the status, or raises TimeoutExpired.
    """
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return wait(process)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # torchrun ends its ranks first.
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(10)


def until(condition: Callable[[], object], seconds: float = 20) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(found)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"


def ends(pid: int, seconds: float = 5) -> bool:
    """Whether it ends in time."""
    return until(lambda: not alive(pid), seconds)
