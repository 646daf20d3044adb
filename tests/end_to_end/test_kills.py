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


def pretrain(folder: Path, *options: str, iterations: int = 6) -> Run:
    """`accel-bridge pretrain` on two ranks, with a checkpoint after every second iteration."""
    words = [*MODEL, *SCHEDULE, *TP2, "--train-iters", str(iterations), "--save-interval", "2"]
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


def test_torchrun_restarts_the_ranks_where_the_last_checkpoint_is(tmp_path: Path) -> None:
    """Rank 1 is killed in a forward pass, then in a backward pass, then in a collective."""
    dying = ["--runner", "end_to_end.dying each", "--max-restarts", "3"]
    run = pretrain(tmp_path, *dying, iterations=8).succeeded()
    assert len(re.findall(r"at iteration [246]\b", run.output)) >= 3
    logged: dict[str, set[str]] = {}
    for number, loss in re.findall(r"iteration\s+(\d+)/.*?lm loss: (\S+)", run.output):
        logged.setdefault(number, set()).add(loss)
    # What was trained twice is the same to the last digit.
    assert {number: len(losses) for number, losses in logged.items()} == {
        str(number): 1 for number in range(1, 9)
    }


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
