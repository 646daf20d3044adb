"""Emulated Ascend NPUs for tests: the real torch_npu, in child processes."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import warm_python
from end_to_end.launcher import Run, train

from accel_bridge.backends.ascend.emulator._build import build
from accel_bridge.backends.ascend.emulator._torch_npu import find_torch_npu


class Ended(NamedTuple):
    """How a command ended, and all that it printed."""

    returncode: int
    output: str


#: Runs a command on emulated NPUs and waits for it; the fixture `emulate` says how.
Emulate = Callable[..., Ended]


@pytest.fixture(scope="session")
def libraries() -> Path:
    """The directory of the emulated CANN libraries; compiles them where that was not done yet."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        pytest.skip("Ascend is emulated on Linux and x86-64 only")
    if shutil.which("g++") is None:
        pytest.skip("the emulated CANN libraries need g++ (apt-get install g++)")
    return build(find_torch_npu(install=True))


@pytest.fixture(scope="session")
def emulate(libraries: Path) -> Emulate:
    """``emulate("script.py", "argument", devices=2, VARIABLE="1")``.

    A first word that ends in ``.py`` is run by this interpreter, ``-m`` and ``-c`` likewise, with
    ``warm=True`` by `warm_python`'s; anything else is a program. ``options`` are those of
    `emulate-ascend`; other keywords are environment variables.
    """

    def run(
        *command: str | Path,
        devices: int = 1,
        memory: str = "16g",
        timeout: float = 300,
        cwd: Path | None = None,
        warm: bool = False,
        options: Sequence[str] = (),
        **environ: str,
    ) -> Ended:
        words = [str(word) for word in command]
        if words[0].endswith(".py") or words[0] in ("-m", "-c"):
            words.insert(0, warm_python.interpreter(emulated=True) if warm else sys.executable)
        machine = ["--devices", str(devices), "--memory", memory, *options]
        child = subprocess.Popen(
            [sys.executable, "-m", "accel_bridge", "emulate-ascend", *machine, "--", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=cwd,
            env={**os.environ, **environ},
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            pytest.fail(f"{words} did not end within {timeout} s:\n{output[-4000:]}")
        return Ended(child.returncode, output)

    return run


def emulated(*arguments: str, processes: int = 1, **options: object) -> Run:
    """Trains the test model on as many emulated NPUs as there are processes."""
    command = [sys.executable, "-m", "accel_bridge", "emulate-ascend"]
    before = [*command, "--devices", str(processes), "--"]
    return train(*arguments, processes=processes, before=before, **options)  # type: ignore[arg-type]
