"""Megatron's log line: the losses of the iterations that it names, and of all stages' experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_arguments, megatron_patch
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


def _make_sizes(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    size = context.argument("num_layers")

    def ensure_initialized(*args: Any, **kwargs: Any) -> Any:
        """Upstream's zeros of a stage without experts, as many as one with experts records."""
        given = megatron_arguments()
        if given is None:
            return upstream(*args, **kwargs)
        layers = given.num_layers + (given.mtp_num_layers or 0)
        changed = size.put(args, kwargs, layers)
        return upstream(*changed[0], **changed[1])

    return ensure_initialized


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
    megatron_patch(
        id="expert-metrics",
        target="megatron.core.transformer.moe.moe_logging:MoEMetricsTracker.ensure_initialized",
        kind=Kind.WRAP,
        make=_make_sizes,
        why="stages sum the losses of their experts by layer; of a hybrid model, a stage without "
        "experts makes one number for each layer with experts, the others one for each layer",
        removed_when="upstream's training loop counts all layers, as its main does",
        loses="hybrid models with experts wait forever where a pipeline stage has no experts",
        requires="megatron-core>=0.18,<0.20",
        elsewhere="Megatron 0.17 waits, too; others make as many numbers on every stage",
        uses=("num_layers",),
    ),
)
