"""Megatron's log line: the losses of the iterations that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    module = context.module
    number = context.argument("iteration")
    first = context.argument("is_first_iteration")

    def training_log(*args: Any, **kwargs: Any) -> Any:
        """Start a new mean after the first iteration where its line is one of the interval's."""
        interval = module.get_args().log_interval
        if first.get(args, kwargs) and number.get(args, kwargs) % interval == 0:
            args, kwargs = first.put(args, kwargs, False)  # type: ignore[assignment]
        return upstream(*args, **kwargs)

    return training_log


PATCHES = (
    megatron_patch(
        id="first-logged-loss",
        target="megatron.training.training:training_log",
        kind=Kind.WRAP,
        make=_make,
        why="the line after the first iteration of a run leaves its loss in the next line's mean, "
        "even where it closed an interval",
        removed_when="upstream resets its sums at every line that closes an interval",
        loses="the second logged loss after a start is the mean of two, as if a resume went wrong",
        requires="megatron-core>=0.16",
        elsewhere="before 0.16 the first iteration of a run has no line of its own",
        uses=("iteration", "is_first_iteration"),
    ),
)
