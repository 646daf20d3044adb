"""The command: a training of a few lines, right and with each injected fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_python

pytestmark = pytest.mark.slow

TRAINER = str(Path(__file__).with_name("trainer.py"))


def _rehearse(
    tmp_path: Path, *options: str, fault: str = "", ranks: int = 2, python: str = ""
) -> tuple[int, str, dict[str, Any]]:
    """(exit status, everything that was printed, the JSON)."""
    made = tmp_path / "made.json"
    python = python or warm_python.interpreter()
    command = [python, "-m", "accel_bridge", "rehearse", "--json", str(made), *options]
    command += ["--", python, "-m", "torch.distributed.run", "--standalone"]
    run = subprocess.run(
        [*command, f"--nproc-per-node={ranks}", TRAINER],
        env={**os.environ, "FAULT": fault},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    data = json.loads(made.read_text()) if made.exists() and made.stat().st_size else {}
    return run.returncode, run.stdout + run.stderr, data


def test_parameters_memory_and_collectives_are_exact(tmp_path: Path) -> None:
    png, page = tmp_path / "a.png", tmp_path / "a.html"
    status, text, data = _rehearse(
        tmp_path, "--ranks", "all", "--png", str(png), "--html", str(page)
    )
    assert status == 0, text
    first, second = data["ranks"]
    parameters = 256 * 512 + 512 + 512 * 256 + 256
    assert first["parameters"] == second["parameters"] == parameters
    assert first["memory"]["weights"] == 2 * parameters
    assert first["memory"]["optimizer"] >= 4 * parameters  # two moments of two bytes
    assert {row["kind"]: row["count"] for row in first["collectives"]} == {
        "all_reduce": 4,
        "send": 1,
    }
    sums = next(row for row in first["collectives"] if row["kind"] == "all_reduce")
    assert sums["bytes"] == 2 * parameters
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"data:image/png" in page.read_bytes()
    # A device one percent too small is one too small, and the next byte would do.
    needs = max(rank["needs_bytes"] for rank in data["ranks"])
    status, text, _ = _rehearse(tmp_path, "--device", f"gb:{needs * 1.2 / 1e9:.6f}")
    assert status == 0, text
    status, text, data = _rehearse(tmp_path, "--device", f"gb:{needs * 0.99 / 1e9:.6f}")
    assert status == 1
    assert not data["fits"]


def test_a_rank_that_reads_what_another_sends(tmp_path: Path) -> None:
    """As Megatron's ranks of a tensor-parallel group read the sizes of their batch."""
    status, text, data = _rehearse(tmp_path, "--ranks", "1")
    assert status == 0, text
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("skipped", "never does"),
        ("order", "another shape"),
        ("shape", "another shape"),
        ("unanswered", "never answers"),
    ],
)
def test_collectives_that_do_not_meet_are_named(fault: str, says: str, tmp_path: Path) -> None:
    status, text, data = _rehearse(tmp_path, "--ranks", "all", fault=fault)
    assert status == 1, text
    (problem,) = data["problems"]
    assert says in problem
    # Both ranks, and the line of the call.
    assert "rank 0" in problem
    assert "rank 1" in problem
    assert f"{TRAINER}:" in problem


def test_a_training_that_grows_is_named(tmp_path: Path) -> None:
    status, _, data = _rehearse(tmp_path, "--steps", "3", fault="grows", ranks=1)
    assert status == 1
    assert "grows" in data["problems"][0]


def test_an_error_of_the_program_is_its_own(tmp_path: Path) -> None:
    status, text, _ = _rehearse(tmp_path, fault="value", python=sys.executable)
    assert status == 1
    assert "rank 0" in text
    assert "the program's own error" in text
    # It branched on a value that nobody knows: the line is named.
    assert f"{TRAINER}:" in text.rpartition("evidence:")[2]


def test_a_command_that_trains_nothing(tmp_path: Path) -> None:
    status, text, _ = _rehearse(tmp_path, fault="nothing")
    assert status == 1
    assert "trained nothing" in text or "does not get through" in text


#: On the device before there are ranks, which never are.
ALONE = """
import torch
from accel_bridge.process import log
model = torch.nn.Linear(1024, 1024).cuda()
last = torch.nn.Linear(1024, 8, device="cuda")
optimizer = torch.optim.SGD([*model.parameters(), *last.parameters()])

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * torch.tensor(2.0, device=grad.device)  # in a thread of autograd's

log.fall_back("a kernel: its reference")
log.fall_back("a scan: its reference; pip install it", names_faster=True)
Doubled.apply(last(model(torch.randn(4, 1024, device="cuda")))).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(("steps", "status"), [("1", 0), ("2", 1)])
def test_one_process_without_torchrun(steps: str, status: int, tmp_path: Path) -> None:
    script, made = tmp_path / "alone.py", tmp_path / "made.json"
    script.write_text(ALONE)
    command = [sys.executable, "-m", "accel_bridge", "rehearse", "--steps", steps]
    run = subprocess.run(
        [*command, "--json", str(made), "--", sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == status, run.stderr
    if status:
        assert "ends after 1 of 2 steps" in run.stderr
        assert "--steps 1" in run.stderr
    else:
        assert "note: a kernel: its reference; NVIDIA's" in run.stdout
        assert "note: a scan: its reference; pip install it\n" in run.stdout
        parameters = 1024 * 1024 + 1024 + 8 * 1024 + 8
        assert json.loads(made.read_text())["ranks"][0]["parameters"] == parameters


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--device", "h1000"], "no device"),
        (["--ranks", "7"], "no rank 7"),
        ([], "starts no rank"),
        (["--ranks", "0-1"], "numbers with commas"),
    ],
)
def test_what_is_not_there(options: list[str], says: str, tmp_path: Path) -> None:
    status, text, _ = _rehearse(tmp_path, *options, ranks=2 if options else 0)
    assert status != 0, text
    assert "Traceback" not in text
    assert says in text
    assert text.count("accel-bridge: error:") == 1


@pytest.mark.example
@pytest.mark.megatron
def test_the_tutorial(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "docs/examples/rehearse/rehearse.sh"
    environ = {"OUT": str(tmp_path / "out"), "NODES": "8", "LAYERS": "40", "BATCH": "8"}
    subprocess.run(
        ["bash", str(script)], env={**os.environ, **environ}, check=True, timeout=600, cwd=tmp_path
    )
    found = json.loads((tmp_path / "out/70b.json").read_text())
    assert [rank["rank"] for rank in found["ranks"]] == [0, 56]
    assert (tmp_path / "out/70b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("#SBATCH --nodes=2 --ntasks-per-node=2", "srun -l --partition batch {rank}"),
        ("#SBATCH -N 2\n#SBATCH --job-name x", "srun -l bash -c '{torchrun}'; {torchrun}"),
        ("", "srun -n 4 -N2 sh -c 'test $RANK = $SLURM_PROCID && {rank}'"),
        # What runs before the training, on one task and on each.
        (
            "#SBATCH --nodes=2 --ntasks-per-node=2 --gres=gpu:h100:2",
            "test $(srun -N 1 -n 1 echo $SLURM_NTASKS $SLURM_GPUS_ON_NODE | tr ' ' -) = 4-2\n"
            "test $(nvidia-smi -L | wc -l) = 8\nsrun bash -c true\nsrun {rank}",
        ),
        ("", "sbatch -N 2 <<'EOF'\n#!/bin/bash\n#SBATCH --ntasks-per-node 2\nsrun {rank}\nEOF"),
    ],
)
def test_a_job_is_rehearsed_without_slurm(head: str, line: str, tmp_path: Path) -> None:
    python = warm_python.interpreter()
    torchrun = f"{python} -m torch.distributed.run --nnodes $SLURM_NNODES --nproc-per-node 2"
    command = line.format(rank=f"{python} {TRAINER}", torchrun=f"{torchrun} {TRAINER}")
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{head}\nset -e\nscontrol show hostnames\n{command}\n")
    made = tmp_path / "made.json"
    rehearse = [python, "-m", "accel_bridge", "rehearse", "--ranks", "0,3", "--json", made]
    run = subprocess.run(
        [*rehearse, "--", "sbatch" if "gres" in head else "bash", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert [rank["rank"] for rank in json.loads(made.read_text())["ranks"]] == [0, 3]
    assert ("the command starts 1 more" in run.stdout) is (line.count("{torchrun}") == 2)
