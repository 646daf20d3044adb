"""The launch files for clusters: their syntax, and two ranks that a shim for Slurm starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from end_to_end.launcher import ROOT

from accel_bridge.apps.testing import MODEL
from accel_bridge.pretrain.command import training_command

LAUNCH = ROOT / "docs" / "examples" / "launch"
SHELL = sorted((ROOT / "docs" / "examples").glob("**/*.sh")) + sorted(LAUNCH.glob("*.sbatch"))

#: Slurm on one machine of two tasks: ``srun`` starts them side by side.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for number in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$number SLURM_LOCALID=$number "$@" &
done
status=0
for job in $(jobs -p); do wait "$job" || status=1; done
exit $status
"""
SCONTROL = "#!/bin/sh\necho localhost\n"


@pytest.mark.parametrize("path", SHELL, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_shell_takes_it(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if shutil.which("shellcheck"):
        words = ["shellcheck", "--shell=bash", "--severity=warning", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def cluster(directory: Path, tasks: int) -> dict[str, str]:
    """The environment of a job, with programs that stand in for Slurm's."""
    directory.mkdir()
    programs = {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "accel-bridge": f'#!/bin/sh\nexec {sys.executable} -m accel_bridge "$@"\n',
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }
    for name, text in programs.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    (directory / "bin").mkdir()
    (directory / "bin" / "activate").write_text("")
    return {
        **os.environ,
        "PATH": f"{directory}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "VENV": str(directory),
        "SLURM_SUBMIT_DIR": str(LAUNCH),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks),
    }


@pytest.mark.example
@pytest.mark.parametrize(("name", "tasks"), [("slurm.sbatch", 1), ("slurm-srun.sbatch", 2)])
def test_two_ranks_train(name: str, tasks: int, tmp_path: Path) -> None:
    environment = cluster(tmp_path / "cluster", tasks)
    environment |= {"DEVICES": "2", "PORT": "29761", "MASTER_PORT": "29762"}
    words = [*MODEL, "--train-iters", "2", "--tensor-model-parallel-size", "2"]
    done = subprocess.run(
        ["bash", LAUNCH / name, *words],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"world_size \.+ 2\n", done.stdout)
    assert len(re.findall(r"iteration +\d/ +2 .* lm loss", done.stdout)) == 2


def job() -> dict[str, Any]:
    """The manifest."""
    (document,) = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def test_its_command_is_one_that_we_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words become torchrun's, with every flag in its place."""
    (script,) = job()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0][
        "args"
    ]
    line = script.replace("\\\n", " ").splitlines()[-1]
    (tmp_path / "words.sh").write_text(line.replace("exec accel-bridge pretrain", "printf '%s\\n'"))
    shown = subprocess.check_output(
        ["bash", tmp_path / "words.sh"],
        env={"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "gpt-master-0", "MASTER_PORT": "23456"},
        text=True,
    )
    monkeypatch.setenv("ACCEL_BRIDGE_BACKEND", "cpu")
    words = [word.replace("8", "2") if word == "8" else word for word in shown.splitlines()]
    command = training_command(words)
    assert command[command.index("--node-rank") + 1] == "1"
    assert command[command.index("--master-addr") + 1] == "gpt-master-0"
    assert command[command.index("--data-path") + 1] == "/data/corpus_text_document"
