"""A device that is nearly full: one line, once, with the flag that helps."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch, on_host
from accel_bridge.patches.progress import watched
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

#: Share of a device's memory above which it is nearly full.
FULL: Final = 0.92
#: Iterations of this run before which the memory is looked at: optimizer states are there from the
#: second on, and batches that ramp up grow for a long time.
LOOKS: Final = (3, 12, 100, 1000, 10_000)


def advice(args: Any, allocated: float) -> str:
    """The flag that makes room; args are Megatron's.

    :param allocated: share of what was reserved that tensors took.
    """
    if allocated < 0.8:
        return "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reserves less beyond tensors"
    if not getattr(args, "recompute_granularity", None):
        return "--recompute-activations computes a part of them again instead of keeping them"
    if getattr(args, "data_parallel_size", 1) > 1 and not _shards(args):
        return "--use-distributed-optimizer shards the optimizer over the data-parallel ranks"
    if args.micro_batch_size > 1:
        return "a smaller --micro-batch-size needs less (the global batch stays)"
    if args.recompute_granularity != "full":
        return (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "
            "keeps the layers' inputs alone"
        )
    return "more --tensor-model-parallel-size or --pipeline-model-parallel-size shards the model"


def _shards(args: Any) -> bool:
    names = ("use_distributed_optimizer", "use_torch_fsdp2", "use_megatron_fsdp")
    return any(getattr(args, name, False) for name in names)


def report(host: Host, args: Any) -> bool:
    """Say so if rank 0's device is nearly full; whether it is."""
    import torch

    reserved, (_, whole) = torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()
    if whole <= 0 or reserved / whole <= FULL:
        return False
    allocated = torch.cuda.max_memory_allocated() / reserved
    host.say(
        f"device memory is nearly full: {reserved / 2**30:.1f} of {whole / 2**30:.1f} GB "
        f"({reserved / whole:.0%}) were reserved; {advice(args, allocated)}"
    )
    return True


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    module, host = context.module, context.host
    steps, reported = 0, os.environ.get("RANK", "0") != "0"

    def train_step(*args: Any, **kwargs: Any) -> Any:
        """A step; before some of them the memory is looked at."""
        nonlocal steps, reported
        steps += 1
        if not reported and steps in LOOKS:
            reported = report(host, module.get_args())
        return upstream(*args, **kwargs)

    return train_step


PATCHES = (
    megatron_patch(
        id="memory-limit",
        target="megatron.training.training:train_step",
        kind=Kind.WRAP,
        make=_make,
        why="nothing tells that a device is nearly full until a longer batch does not fit",
        removed_when="upstream reports it",
        loses="a run that may stop for want of memory looks like any other",
        after=("host-limit",),
        armed_when=watched,
        skip_when=on_host,
    ),
)
