"""Helpers of the kernel tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import warm_python
from torch import multiprocessing

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import CaseResult, check_kernel
from accel_bridge.kernels import Kernel
from accel_bridge.kernels.cases import Case

from .upstream import random

__all__ = ["CASES", "failures", "on_two_ranks", "random"]

CASES = all_cases()


def failures(kernel: Kernel[Any, Any], cases: tuple[Case, ...] = CASES) -> list[CaseResult]:
    """The rows of the tolerances that ``kernel`` fails."""
    return [row for row in check_kernel(kernel, cases) if row.verdict == "fail"]


def on_two_ranks(judge: Callable[[dist.ProcessGroup], Any], directory: Path) -> list[Any]:
    """What each of two processes finds in their group."""
    with warm_python.spawning():
        multiprocessing.spawn(_judged, args=(judge, str(directory)), nprocs=2)
    return [json.loads((directory / f"rank{rank}.json").read_text()) for rank in range(2)]


def _judged(rank: int, judge: Callable[[Any], Any], directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    found = judge(dist.group.WORLD)
    Path(directory, f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
