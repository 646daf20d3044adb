"""Runs real Megatron in processes of its own and reads its log.

Runs on the CPU and on emulated NPUs start from `warm_python`. ``real=True`` takes new interpreters:
for what tests the start itself, and for one run of each kind, so that the road of users stays
proven.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warm_python

from accel_bridge.apps.testing import MODEL

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "pretrain" / "pretrain_gpt.py"
#: The same, and prints how many tensors live after every step.
COUNTING = ROOT / "tests" / "end_to_end" / "count_tensors.py"

#: How the test model is trained here; nothing depends on the layout.
SCHEDULE = "--lr 1e-3 --lr-decay-iters 10 --ckpt-format torch_dist".split()
SCHEDULE += ["--distributed-backend", "nccl"]

#: Several documents in a row of tokens, none of which sees another.
DOCUMENTS = "--dataloader-inter-document-masking --position-embedding-type rope".split()

#: Variables under which ``fused_host`` is the backend.
FUSED_HOST = {
    "PYTHONPATH": str(ROOT / "tests"),
    "ACCEL_BRIDGE_PLUGINS": "end_to_end.fused_host",
    "ACCEL_BRIDGE_BACKEND": "fused-host",
}

#: With one iteration: a checkpoint is loaded and saved with the same weights.
UNCHANGED = ["--lr", "0", "--min-lr", "0", "--save-interval", "1"]

_LOSS = re.compile(r"iteration\s+(\d+)/.*?lm loss: ([-+.\dEe]+|nan|inf)")


@dataclass(frozen=True)
class Run:
    """What a training run left behind."""

    returncode: int
    output: str

    def save(self, path: Path) -> None:
        """Keep it for another process."""
        path.write_text(json.dumps([self.returncode, self.output]))

    @classmethod
    def load(cls, path: Path) -> Run:
        """One that was saved."""
        return cls(*json.loads(path.read_text()))

    @property
    def losses(self) -> dict[int, float]:
        """Logged loss by iteration (nats per token, seven digits)."""
        return {int(number): float(loss) for number, loss in _LOSS.findall(self.output)}

    @property
    def left_behind(self) -> int:
        """Tensors that the steps after the third added to those that live, with ``COUNTING``."""
        living = [int(count) for count in re.findall(r"living tensors: (\d+)", self.output)]
        assert len(living) > 3, self.output[-3000:]
        return living[-1] - living[2]

    def succeeded(self) -> Run:
        """Itself; fails the test with the log's end when the run failed."""
        assert self.returncode == 0, self.output[-6000:]
        return self


def launch(
    command: Sequence[str],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 240,
) -> Run:
    """Run a command with this Python's environment; stdout and stderr together."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **(env or {})}
    done = subprocess.run(
        command,
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
    )
    return Run(done.returncode, done.stdout)


def start(
    processes: int,
    script: Path,
    arguments: Sequence[str],
    *,
    before: Sequence[str] = (),
    real: bool = False,
    **options: Any,
) -> Run:
    """Run a training script: two processes as real torchrun ranks, one as plain Python.

    One rank needs no torchrun, which costs as much time as its training.

    :param before: words of ``emulate-ascend``, which runs the rest.
    :param real: in new interpreters.
    """
    python = sys.executable
    if not real:
        # Whoever counts the tensors that live sees the start, too.
        python = warm_python.interpreter(emulated=bool(before), active=script != COUNTING)
    bridge = ["-m", "accel_bridge.run", str(script), *arguments]
    if processes > 1:
        torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
        return launch([*before, *torchrun, "--nproc-per-node", str(processes), *bridge], **options)
    return launch([*before, python, *bridge], **options)


def train(
    *arguments: str,
    processes: int = 1,
    iterations: int = 5,
    script: Path = SCRIPT,
    **options: Any,
) -> Run:
    """Train the test model for some iterations; later arguments win. ``start`` has the options."""
    schedule = [*SCHEDULE, "--train-iters", str(iterations)]
    return start(processes, script, [*MODEL, *schedule, *arguments], **options)


def worst_difference(left: Run, right: Run) -> float:
    """Largest absolute difference of losses over the iterations, which must be the same ones."""
    assert left.losses, left.output[-3000:]
    assert left.losses.keys() == right.losses.keys(), right.output[-3000:]
    return max(abs(left.losses[number] - right.losses[number]) for number in left.losses)
