"""What a watched run logs beside Megatron's own line: operations and memory of an iteration."""

from __future__ import annotations

import os
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, after
from accel_bridge.process.progress.lines import FACTS, facts_line


def _log(context: PatchContext, _result: Any, iteration: int) -> None:
    """Log the facts after Megatron's line, on the rank that prints it."""
    module, settings = context.module, context.module.get_args()
    if iteration % settings.log_interval == 0 and settings.rank == settings.world_size - 1:
        try:
            facts = _facts(module, settings)
        except Exception as error:  # a fork may count otherwise: no reason to stop training
            context.host.say_once(f"no TFLOP/s and memory in the progress line: {error!r}")
        else:
            print(facts_line(iteration, settings.train_iters, *facts), flush=True)


def _facts(module: Any, settings: Any) -> tuple[float, float, float]:
    """(TFLOP of an iteration on a device, GB reserved at most, GB of the device)."""
    import torch

    batch = settings.micro_batch_size * settings.data_parallel_size * module.get_num_microbatches()
    operations = module.num_floating_point_operations(settings, batch) / settings.world_size
    reserved, (_, whole) = torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()
    return operations / 1e12, reserved / 2**30, whole / 2**30


def watched() -> bool:
    """Whether a command shows this run's progress, and what helps it."""
    return bool(os.environ.get(FACTS))


PATCHES = (
    megatron_patch(
        id="progress-facts",
        target="megatron.training.training:training_log",
        kind=Kind.WRAP,
        make=after(_log),
        why="the progress line shows TFLOP/s and memory, which Megatron logs only when asked, or "
        "once",
        removed_when="upstream logs both in its line",
        loses="TFLOP/s and memory in the progress line",
        uses=("iteration",),
        after=("first-logged-loss",),
        armed_when=watched,
    ),
)
