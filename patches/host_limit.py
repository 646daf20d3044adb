"""Who is waited for: at the end of a run, whether the host was the limit, and what helps."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.progress import watched
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

#: Iteration of this run in which the device is watched: compiling and tuning are over.
ITERATION: Final = 12
#: Share of the time below which a device counts as waiting for the host.
BUSY: Final = 0.8


def advice(args: Any) -> str:
    """Flags that give the device more work for each launch; args are Megatron's."""
    if getattr(args, "num_experts", None):
        return "a larger --micro-batch-size, or fewer and larger experts, gives launches more work"
    if getattr(args, "cuda_graph_impl", None) is not None:
        return (
            "--cuda-graph-impl full_iteration --te-rng-tracker "
            "--no-check-for-nan-in-loss-and-grad launches a whole iteration at once, "
            "--cuda-graph-impl local --te-rng-tracker a layer; so does a larger --micro-batch-size"
        )
    return "--enable-cuda-graph --te-rng-tracker launches a layer at once"


def _uses_graphs(args: Any) -> bool:
    impl = getattr(args, "cuda_graph_impl", None) or "none"
    others = ("enable_cuda_graph", "external_cuda_graph")
    return impl != "none" or any(getattr(args, name, False) for name in others)


def report(host: Host, args: Any, read: Callable[[], float | None]) -> None:
    """Say so if the device waited; ``read`` gives the share of the time in which it computed."""
    share = read()
    if share is None or share >= BUSY or _uses_graphs(args):
        return
    host.say(
        f"the device computed {share:.0%} of the time (iteration {ITERATION}): "
        f"the host is the limit; {advice(args)}"
    )


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    module, host = context.module, context.host
    steps = 0

    def train_step(*args: Any, **kwargs: Any) -> Any:
        """A step; one of them is watched from outside of this process."""
        nonlocal steps
        steps += 1
        if steps == ITERATION and os.environ.get("RANK", "0") == "0":
            read = host.backend.watch()
            if read is not None:
                atexit.register(report, host, module.get_args(), read)
        return upstream(*args, **kwargs)

    return train_step


PATCHES = (
    megatron_patch(
        id="host-limit",
        target="megatron.training.training:train_step",
        kind=Kind.WRAP,
        make=_make,
        why="nothing tells that the device waits for the host, nor which flag would help",
        removed_when="upstream reports it",
        loses="a run that could be several times faster with graphs looks like any other",
        after=("record-step",),
        armed_when=watched,
        skip_when=lambda host: (
            None if host.features.cuda_graphs else "this device has no graphs to recommend"
        ),
    ),
)
