"""One run at a time writes an output: owners that live, were killed, or are on another machine."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accel_bridge.process import outputs
from accel_bridge.process.outputs import OutputError, OutputLock

#: Takes the lock, forks a child that stays, and says so.
OWNER = """
import os, sys, time
from accel_bridge.process.outputs import OutputLock
lock = OutputLock(sys.argv[1], "--save", beats=True).__enter__()
if os.fork() == 0:
    time.sleep(30)
    os._exit(0)
print("taken", flush=True)
time.sleep(30)
"""
ELSEWHERE = {
    "accel_bridge lock": 1,
    "machine": "another",
    "host": "node7",
    "pid": 4711,
    "since": "2026-01-01 00:00:00",
    "command": "pretrain_gpt.py",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(outputs, "BEAT", 0.1)
    monkeypatch.setattr(outputs, "SILENCE", 0.8)


@contextmanager
def owner(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock, and its child."""
    words = [sys.executable, "-c", OWNER, str(path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout.readline() == "taken\n"
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def take(path: Path) -> None:
    with OutputLock(path, "--save", beats=True):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with owner(path) as process, pytest.raises(OutputError) as refused:
        take(path)
    assert f"pid {process.pid} on " in refused.value.evidence[0]


def test_a_killed_owner_holds_nothing_nor_does_its_fork(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with owner(path) as process:
        process.kill()
        process.wait()
        began = time.monotonic()
        take(path)
        assert time.monotonic() - began < outputs.SILENCE


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("machine", ["another", "this, without locks"])
def test_an_owner_whose_lock_is_not_seen(
    tmp_path: Path, alive: bool, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on another machine, or the file system has no locks at all."""
    path = tmp_path / "lock"
    here = machine != "another"
    path.write_text(json.dumps({**ELSEWHERE, "machine": outputs._machine() if here else machine}))
    if here:

        def no_locks(*_: object) -> None:
            raise OSError(errno.ENOTSUP, "not supported")

        monkeypatch.setattr(fcntl, "flock", no_locks)
    done = threading.Event()

    def touch() -> None:
        while alive and not done.wait(outputs.BEAT):
            path.touch()

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        if alive:
            with pytest.raises(OutputError, match="node7"):
                take(path)
            assert json.loads(path.read_text())["host"] == "node7"
        else:
            take(path)
    finally:
        done.set()
        thread.join()


def test_the_owner_touches_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with OutputLock(path, "--save", beats=True):
        before = path.stat().st_mtime_ns
        time.sleep(5 * outputs.BEAT)
        assert path.stat().st_mtime_ns > before
        assert outputs.is_lock(path.read_bytes())


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00" * 99, "[" * 9999])
def test_a_damaged_lock_of_nobody_is_taken_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    take(path)
