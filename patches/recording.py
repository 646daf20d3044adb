"""Recording a training run: under ``parity record`` and ``accel-bridge run --record`` alone.

Megatron's own loop is recorded at its ``train_step``. A loop that somebody else has written from
megatron.core is recorded at the calls that every such loop makes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches._failure import Failure
from accel_bridge.patching import Kind, PatchContext, around
from accel_bridge.patching.host import Host
from accel_bridge.recording import current_plan

if TYPE_CHECKING:
    from accel_bridge.patches.modules.recorded_loop import LoopRun
    from accel_bridge.patches.modules.recorded_run import TrainingRun


@dataclass
class _Held:
    """This process's recorded run: of Megatron's loop, of another one, or none yet."""

    training: TrainingRun | None = None
    loop: LoopRun | None = None
    failure: Failure = field(default_factory=Failure)


def _held(host: Host) -> _Held:
    return host.once("recorded run", _Held)


def _make_train_step(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    host: Host = context.host
    model, optimizer = context.argument("model"), context.argument("optimizer")
    iteration = context.optional_argument("iteration")

    def train_step(*args: Any, **kwargs: Any) -> Any:
        """One training step, recorded."""
        from accel_bridge.patches.modules.recorded_run import TrainingRun

        plan = current_plan()
        if plan is not None and plan.tokens:
            from accel_bridge.patches.modules.scored_tokens import write_scored

            write_scored(model.get(args, kwargs), plan)
        held = _held(host)
        if held.training is None:
            of = model.get(args, kwargs), optimizer.get(args, kwargs)
            held.training = TrainingRun(host, *of, held.failure)
        run = held.training
        # Megatron before 0.16 keeps the number among its arguments alone.
        if iteration is None:
            run.begin(context.module.get_args().curr_iteration)
        else:
            run.begin(iteration.get(args, kwargs))
        result = upstream(*args, **kwargs)
        losses, gradient_norm = result[0], result[5]
        run.end(losses, gradient_norm)
        return result

    return train_step


def _make_pretrain(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    failure = _held(context.host).failure

    def pretrain(*args: Any, **kwargs: Any) -> Any:
        """The training; it fails at its end where it could not be recorded."""
        failure.waits = True
        try:
            result = upstream(*args, **kwargs)
        finally:
            failure.waits = False
        if failure.error is not None:
            raise failure.error
        return result

    return pretrain


def _schedule(context: PatchContext, call: Callable[[], Any]) -> Callable[..., Any]:
    """Upstream's schedule; what it trains belongs to a recorded step."""
    host: Host = context.host
    schedule: Callable[..., Any] = call()

    @functools.wraps(schedule)
    def recorded_schedule(**options: Any) -> Any:
        from accel_bridge.patches.modules.recorded_loop import LoopRun

        held = _held(host)
        if held.training or options.get("forward_only"):
            return schedule(**options)
        if held.loop is None:
            held.loop = LoopRun(host, options)
        held.loop.begin()
        losses = schedule(**options)
        held.loop.trained(losses)
        return losses

    return recorded_schedule


def _make_gradients(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    host: Host = context.host
    tokens = context.optional_argument("num_tokens")

    def finalize_model_grads(*args: Any, **kwargs: Any) -> None:
        """Upstream's; then measures the gradients: the optimizer has not clipped them yet."""
        held = _held(host)
        run = held.training or held.loop
        with contextlib.nullcontext() if run is None else run.recorder.part("gradients"):
            upstream(*args, **kwargs)
        if held.training:
            held.training.recorder.gradients_ready()
        elif held.loop:
            held.loop.gradients_ready(None if tokens is None else tokens.get(args, kwargs))

    return finalize_model_grads


def _update(context: PatchContext, call: Callable[[], Any]) -> Any:
    """Upstream's; ends the recorded step of a loop that is not Megatron's."""
    held = _held(context.host)
    if held.training:
        with held.training.recorder.part("optimizer"):
            return call()
    run = held.loop
    if run is None or not run.update_begins():
        return call()
    with run.recorder.part("optimizer"):
        result = call()
    run.update_ends(result)
    return result


def _recording() -> bool:
    return current_plan() is not None


PATCHES = (
    megatron_patch(
        id="record-step",
        target="megatron.training.training:train_step",
        kind=Kind.WRAP,
        make=_make_train_step,
        why="a recording holds loss, gradient norm and module statistics of every step",
        removed_when="upstream calls user code with a step's raw results",
        loses="accel-bridge parity record",
        uses=("model", "optimizer"),
        armed_when=_recording,
    ),
    megatron_patch(
        id="record-end",
        target="megatron.training.training:pretrain",
        kind=Kind.WRAP,
        make=_make_pretrain,
        why="a recording that cannot be written must not end a training before its last checkpoint",
        removed_when="upstream calls user code at the end of a training",
        loses="the last checkpoint of a run whose recording cannot be written",
        armed_when=_recording,
        after=("error-advice",),
    ),
    megatron_patch(
        id="record-gradients",
        target="megatron.core.distributed.finalize_model_grads:finalize_model_grads",
        kind=Kind.WRAP,
        make=_make_gradients,
        why="the optimizer clips gradients in place, so they must be measured before its step",
        removed_when="upstream calls user code between backward pass and optimizer",
        loses="gradients of weights in recordings",
        armed_when=_recording,
    ),
    megatron_patch(
        id="record-schedule",
        target="megatron.core.pipeline_parallel.schedules:get_forward_backward_func",
        kind=Kind.WRAP,
        make=around(_schedule),
        why="a program with a training loop of its own calls Megatron's schedules and not its "
        "train_step; a recorded step begins with them",
        removed_when="upstream calls user code around every schedule",
        loses="accel-bridge run --record with a training loop that is not Megatron's",
        armed_when=_recording,
        after=("packed-stages",),
    ),
    *(
        megatron_patch(
            id=f"record-update-{kind}",
            target=f"megatron.core.optimizer.optimizer:{name}.step",
            kind=Kind.WRAP,
            make=around(_update),
            why="the recorded step of a training loop that is not Megatron's ends with the "
            "optimizer, which knows the gradient norm",
            removed_when="upstream calls user code after every update",
            loses="accel-bridge run --record with a training loop that is not Megatron's",
            armed_when=_recording,
        )
        for kind, name in (
            ("float32", "FP32Optimizer"),
            ("mixed", "MixedPrecisionOptimizer"),
            ("chained", "ChainedOptimizer"),
        )
    ),
)
