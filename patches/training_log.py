"""Megatron's log line: the losses of the iterations that it names, and of all stages' experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_arguments, megatron_patch
from accel_bridge.patching import Kind, PatchContext, around


def _log(context: PatchContext, call: Callable[..., Any], iteration: int, first: bool) -> Any:
    """Start a new mean after the first iteration where its line is one of the interval's."""
    if first and iteration % context.module.get_args().log_interval == 0:
        return call(is_first_iteration=False)
    return call()


def _sizes(_context: PatchContext, call: Callable[..., Any], _num_layers: int) -> Any:
    """Upstream's zeros of a stage without experts, as many as one with experts records."""
    given = megatron_arguments()
    if given is None:
        return call()
    return call(num_layers=given.num_layers + (given.mtp_num_layers or 0))


PATCHES = (
    megatron_patch(
        id="first-logged-loss",
        target="megatron.training.training:training_log",
        kind=Kind.WRAP,
        make=around(_log),
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
        make=around(_sizes),
        why="stages sum the losses of their experts by layer; of a hybrid model, a stage without "
        "experts makes one number for each layer with experts, the others one for each layer",
        removed_when="upstream's training loop counts all layers, as its main does",
        loses="hybrid models with experts wait forever where a pipeline stage has no experts",
        requires="megatron-core>=0.18,<0.20",
        elsewhere="Megatron 0.17 waits, too; others make as many numbers on every stage",
        uses=("num_layers",),
    ),
)
