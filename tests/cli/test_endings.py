"""The one process of a run: a signal that ends it is named, signals reach it, it is not left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel_bridge import _endings
from accel_bridge._endings import ProcessKilledError

#: A program that runs one, as `accel-bridge pretrain` does.
PARENT = """
import sys
from accel_bridge import _endings
sys.exit(_endings.run([sys.executable, "-c", sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "compiled library failed"),
        (signal.SIGKILL, "memory is full"),
        (signal.SIGBUS, "/dev/shm"),
        (signal.SIGRTMIN + 1, "somebody sent it"),
    ],
)
def test_a_crash_is_named(number: int, words: str) -> None:
    code = f"import os, resource; resource.setrlimit(4, (0, 0)); os.kill(os.getpid(), {number})"
    with pytest.raises(ProcessKilledError, match="rank 0 was killed by") as caught:
        _endings.run([sys.executable, "-c", code])
    assert words in str(caught.value)
    assert f"exit status -{number}" in caught.value.evidence[0]


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("", 0)])
def test_a_status_is_the_process_own(code: str, status: int) -> None:
    assert _endings.run([sys.executable, "-c", code]) == status


def _started(code: str) -> tuple[subprocess.Popen[str], int]:
    ready = "import os, time; print(os.getpid(), flush=True);"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, ready + code], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_the_process(number: signal.Signals) -> None:
    parent, _ = _started("time.sleep(60)")
    parent.send_signal(number)
    # Nobody asks a process to end by SIGUSR1: there it is named, as a crash is.
    expected = 1 if number is signal.SIGUSR1 else 128 + number
    assert parent.wait(10) == expected


def test_it_does_not_outlive_who_waits_for_it() -> None:
    parent, pid = _started("time.sleep(60)")
    parent.kill()
    parent.wait(10)
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
