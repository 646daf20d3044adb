"""Ranks and launchers that are killed: the run ends, nothing is left, and resuming is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import warm_python

from accel_bridge.apps.testing import MODEL
from accel_bridge.patches.save_lock import LOCK
from accel_bridge.process.outputs import OutputLock
from end_to_end.launcher import ROOT, SCHEDULE, Run, launch, train

TESTS = {"PYTHONPATH": str(ROOT / "tests")}
TP2 = ["--tensor-model-parallel-size", "2"]


def saving(directory: Path) -> list[str]:
    """Flags of a run with a checkpoint after every second iteration."""
    return ["--save-interval", "2", "--save", str(directory), "--load", str(directory)]


def pretrain(*options: str, more: Sequence[str] = ()) -> Run:
    """`accel-bridge pretrain` on two ranks.

    :param more: further arguments of Megatron.
    """
    words = [*MODEL, *SCHEDULE, *TP2, "--train-iters", "6", *more]
    python = warm_python.interpreter(active=True)
    command = [python, "-m", "accel_bridge", "pretrain"]
    return launch([*command, "--nproc-per-node", "2", *options, "--", *words], env=TESTS)


def test_ranks_are_killed_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """In a save, and in a collective, after which torchrun restarts all ranks.

    The half checkpoint is not taken for a whole one, what is trained again is the same, and nobody
    holds the directory in the end.
    """
    expected = pretrain().succeeded().losses
    saves = saving(tmp_path / "killed")
    killed = pretrain("--runner", "end_to_end.dying save", more=saves)
    assert killed.returncode == 1, killed.output[-3000:]
    assert "rank 1 was killed by SIGKILL" in killed.output
    assert "goes on from the last whole checkpoint" in killed.output
    assert killed.losses, killed.output[-3000:]
    agree(killed.losses, expected)
    last = ["--max-restarts", "1", "--runner", "end_to_end.dying collective"]
    restarted = pretrain(*last, more=saves).succeeded()
    assert "exitcode: -9" in restarted.output or "Signal 9" in restarted.output
    agree(restarted.losses, expected)
    assert killed.losses.keys() | restarted.losses.keys() == expected.keys()
    assert not (tmp_path / "killed" / LOCK).exists()


def agree(found: dict[int, float], expected: dict[int, float]) -> None:
    """Every loss is the undisturbed run's, to the last digit."""
    assert found == {number: expected[number] for number in found}


def test_a_killed_torchrun_leaves_no_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time, torch\nprint('training', flush=True)\ntime.sleep(600)\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher = subprocess.Popen(
        [*torchrun, "--nproc-per-node", "1", "-m", "accel_bridge.run", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert launcher.stdout is not None
    assert any(line == "training\n" for line in launcher.stdout)
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text()
    rank = Path(f"/proc/{int(children)}/cmdline")
    launcher.kill()
    launcher.wait()
    ends = time.monotonic() + 10
    # A process that has ended and was not waited for has no command line.
    while rank.exists() and rank.read_bytes():
        if time.monotonic() > ends:
            os.kill(int(children), signal.SIGKILL)
            pytest.fail("the rank was left behind")
        time.sleep(0.1)


def test_two_trainings_do_not_save_to_one_directory(tmp_path: Path) -> None:
    """The second is refused before it trains, and names the first."""
    saves = ["--save", str(tmp_path), "--save-interval", "2"]
    with OutputLock(tmp_path / LOCK, "--save"):
        refused = train(*saves, iterations=2)
    assert refused.returncode == 2, refused.output[-3000:]
    assert f"Another training saves to {tmp_path}." in refused.output
    assert f"pid {os.getpid()} on " in refused.output
    assert not refused.losses
    assert not list(tmp_path.glob("iter_*"))
