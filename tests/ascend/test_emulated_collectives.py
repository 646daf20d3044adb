"""HCCL's emulation: every collective against computed values, dead ranks, time-outs, no litter."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from .conftest import Emulate, Ended

WORKER = Path(__file__).with_name("collectives_worker.py")
COLLECTIVES = [
    *["all_reduce", "wide_reductions", "reduce", "all_gather", "reduce_scatter", "broadcast"],
    *["scatter_and_gather", "all_to_all", "point_to_point", "groups", "asynchronous", "barrier"],
    *("fused_gemms", "parallel_layers"),
]


def collectives(emulate: Emulate, ranks: int, *names: str, **environ: str) -> Ended:
    """What the ranks print; two real torchrun ranks are in test_emulated_training.py."""
    words = (str(ranks), *names)
    ended = emulate(WORKER, *words, devices=ranks, timeout=120, warm=True, **environ)
    (root,) = re.findall(r"^root (\S+)$", ended.output, re.MULTILINE)
    assert root.startswith("/dev/shm/")
    assert not Path(root).exists(), f"{root} was left behind"
    return ended


def test_collectives(emulate: Emulate) -> None:
    """On four ranks, groups of two among them; test_emulated_training.py has two and four."""
    ended = collectives(emulate, 4, *COLLECTIVES)
    passed = re.findall(r"^ok (\w+)$", ended.output, re.MULTILINE)
    assert passed == COLLECTIVES, ended.output[-6000:]


def test_refusals(emulate: Emulate) -> None:
    """Without torch_npu's task queue: behind it the error may be noted at any later time."""
    names = ("refused_reductions", "refused_gemms")
    ended = collectives(emulate, 2, *names, TASK_QUEUE_ENABLE="0")
    assert "statuses [0, 0]" in ended.output, ended.output[-6000:]
    refused = re.findall(r"^refused (?:torch\.)?(\S+) (.*)$", ended.output, re.MULTILINE)
    said = {first: f"{first} {rest}" for first, rest in refused}
    assert len(refused) == 4, ended.output[-4000:]
    assert "Unsupported data type" in said["float64"]
    assert "bfloat16 cannot be reduced by product" in said["bfloat16"]
    for rule in ("npu_all_gather_base_mm: number of biases", "npu_mm_reduce_scatter_base: number"):
        assert rule in ended.output


def test_a_number_of_ranks_without_gemms(emulate: Emulate) -> None:
    ended = collectives(emulate, 3, "refused_gemms")
    assert "npu_mm_all_reduce_base: number of ranks is 1, 2, 4 or 8, not 3" in ended.output
    assert len(re.findall(r"^refused ", ended.output, re.MULTILINE)) == 3


def test_a_dead_rank_ends_the_others(emulate: Emulate) -> None:
    """Within seconds, and they say who died."""
    ended = collectives(emulate, 3, "dies")
    assert ended.returncode != 0
    assert "statuses [1, 1, -9]" in ended.output, ended.output[-6000:]
    assert "hung" not in ended.output
    died = re.search(
        r"RuntimeError: .*?rank 2 of \S+ \(process \d+\) has ended", ended.output, re.S
    )
    assert died, ended.output[-6000:]


def test_a_rank_that_never_comes(emulate: Emulate) -> None:
    ended = collectives(emulate, 2, "stays_away", HCCL_EXEC_TIMEOUT="2")
    assert ended.returncode != 0
    assert "hung" not in ended.output
    assert re.search(r"rank 0 of \S+ waited 2 s for rank 1", ended.output), ended.output[-6000:]


def test_a_run_that_is_ended_leaves_nothing(libraries: Path) -> None:
    """SIGTERM reaches the command; its directory in /dev/shm goes."""
    script = (
        "import os, time; print(os.environ['ASCEND_EMULATOR_ROOT'], flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "accel_bridge",
            "emulate-ascend",
            "--",
            sys.executable,
            "-c",
            script,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    root = Path(child.stdout.readline().strip())
    assert root.is_dir()
    child.send_signal(signal.SIGTERM)
    start = time.monotonic()
    assert child.wait(20) == 128 + signal.SIGTERM
    assert time.monotonic() - start < 10
    assert not root.exists()
