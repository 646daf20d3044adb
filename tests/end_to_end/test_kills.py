"""Ranks and launchers that are killed: the run ends, nothing is left, and resuming is exact."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm_python

from accel_bridge.apps.testing import MODEL
from end_to_end.launcher import ROOT, SCHEDULE, Run, launch

TESTS = {"PYTHONPATH": str(ROOT / "tests")}
TP2 = ["--tensor-model-parallel-size", "2"]


def pretrain(folder: Path, *options: str) -> Run:
    """`accel-bridge pretrain` on two ranks: six iterations, a checkpoint after every second."""
    words = [*MODEL, *SCHEDULE, *TP2, "--train-iters", "6", "--save-interval", "2"]
    words += ["--save", str(folder), "--load", str(folder)]
    command = [warm_python.interpreter(), "-m", "accel_bridge", "pretrain"]
    return launch([*command, "--nproc-per-node", "2", *options, "--", *words], env=TESTS)


@pytest.mark.parametrize("stage", ["save"])
def test_a_rank_is_killed_and_the_same_command_goes_on(stage: str, tmp_path: Path) -> None:
    """The half checkpoint is not taken for a whole one; what is trained again is the same."""
    killed = pretrain(tmp_path, "--runner", f"end_to_end.dying {stage}")
    assert killed.returncode == 1, killed.output[-3000:]
    assert "rank 1 was killed by SIGKILL" in killed.output
    assert "goes on from the last whole checkpoint" in killed.output
    resumed = pretrain(tmp_path).succeeded()
    assert "at iteration 2" in resumed.output
    assert sorted(resumed.losses) == [3, 4, 5, 6]
    again = killed.losses.keys() & resumed.losses.keys()
    assert again
    assert {n: killed.losses[n] for n in again} == {n: resumed.losses[n] for n in again}


def test_a_killed_torchrun_leaves_no_rank() -> None:
    words = [*MODEL, *SCHEDULE, "--train-iters", "10000"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = ["-m", "accel_bridge.run", str(ROOT / "pretrain" / "pretrain_gpt.py")]
    launcher = subprocess.Popen(
        [*torchrun, "--nproc-per-node", "1", *program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert launcher.stdout is not None
    for line in launcher.stdout:
        if re.search(r"iteration\s+1/", line):
            break
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
