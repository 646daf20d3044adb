"""Recording a training run: only under ``accel-bridge parity record``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge._errors import BridgeError
from accel_bridge._host import Host
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, after
from accel_bridge.recording import current_plan

#: Name under which the host keeps the recorded run.
RUN = "recorded run"
#: Name under which it keeps a :class:`Failure`.
FAILURE = "recorded run's failure"


class Failure:
    """Why no recording could be written at the last step.

    :ivar waits: whether somebody asks for it at the end. A checkpoint is saved before that.
    """

    def __init__(self) -> None:
        self.waits = False
        self.error: BridgeError | None = None


def _make_train_step(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    host: Host = context.host
    model, optimizer = context.argument("model"), context.argument("optimizer")
    iteration = context.optional_argument("iteration")

    @functools.wraps(upstream)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        """One training step, recorded."""
        from accel_bridge.patches.modules.recorded_run import RecordedRun

        run = host.once(
            RUN, lambda: RecordedRun(host, model.get(args, kwargs), optimizer.get(args, kwargs))
        )
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
    failure = context.host.once(FAILURE, Failure)

    @functools.wraps(upstream)
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


def _measure(context: PatchContext, result: None) -> None:
    """Measure the finished gradients: the optimizer has not clipped them yet."""
    from accel_bridge.patches.modules.recorded_run import RecordedRun

    run = context.host.once(RUN, _not_begun)
    assert isinstance(run, RecordedRun)
    run.recorder.gradients_ready()


def _not_begun() -> None:
    raise RuntimeError("gradients were finalized before the first recorded train_step")


def _not_asked(host: Host) -> str | None:
    return None if current_plan() else "not recording (`accel-bridge parity record` does)"


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
        skip_when=_not_asked,
    ),
    megatron_patch(
        id="record-end",
        target="megatron.training.training:pretrain",
        kind=Kind.WRAP,
        make=_make_pretrain,
        why="a recording that cannot be written must not end a training before its last checkpoint",
        removed_when="upstream calls user code at the end of a training",
        loses="the last checkpoint of a run whose recording cannot be written",
        skip_when=_not_asked,
        after=("error-advice",),
    ),
    megatron_patch(
        id="record-gradients",
        target="megatron.core.distributed.finalize_model_grads:finalize_model_grads",
        kind=Kind.WRAP,
        make=after(_measure),
        why="the optimizer clips gradients in place, so they must be measured before its step",
        removed_when="upstream calls user code between backward pass and optimizer",
        loses="gradients of weights in recordings",
        skip_when=_not_asked,
    ),
)
