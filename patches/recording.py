"""Recording a training run: only under ``accel-bridge parity record``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge._host import Host
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext
from accel_bridge.recording import current_plan

#: Name under which the host keeps the recorded run.
RUN = "recorded run"


def _make_train_step(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    host: Host = context.host

    @functools.wraps(upstream)
    def train_step(
        forward_step_func: Any,
        data_iterator: Any,
        model: Any,
        optimizer: Any,
        opt_param_scheduler: Any,
        config: Any,
        forward_backward_func: Any,
        iteration: int | None = None,
        pg_collection: Any = None,
        p2p_communicator: Any = None,
    ) -> Any:
        """One training step, recorded."""
        from accel_bridge.patches.modules.recorded_run import RecordedRun

        run = host.once(RUN, lambda: RecordedRun(host, model, optimizer))
        run.begin(iteration)
        result = upstream(
            forward_step_func,
            data_iterator,
            model,
            optimizer,
            opt_param_scheduler,
            config,
            forward_backward_func,
            iteration=iteration,
            pg_collection=pg_collection,
            p2p_communicator=p2p_communicator,
        )
        losses, gradient_norm = result[0], result[5]
        run.end(losses, gradient_norm)
        return result

    return train_step


def _make_finalize(context: PatchContext) -> Callable[..., None]:
    upstream = context.original
    host: Host = context.host

    @functools.wraps(upstream)
    def finalize_model_grads(
        model: Any,
        num_tokens: Any = None,
        pg_collection: Any = None,
        force_all_reduce: bool | None = False,
    ) -> None:
        """Finish the gradients, then measure them: the optimizer has not clipped them yet."""
        from accel_bridge.patches.modules.recorded_run import RecordedRun

        upstream(model, num_tokens, pg_collection, force_all_reduce)
        run = host.once(RUN, _not_begun)
        assert isinstance(run, RecordedRun)
        run.recorder.gradients_ready()

    return finalize_model_grads


def _not_begun() -> None:
    raise RuntimeError("gradients were finalized before the first recorded train_step")


def _not_asked(host: Host) -> str | None:
    return None if current_plan() else "nothing is recorded here (accel-bridge parity record is)"


PATCHES = (
    Patch(
        id="record-step",
        target="megatron.training.training:train_step",
        kind=Kind.WRAP,
        make=_make_train_step,
        why="a recording holds loss, gradient norm and module statistics of every step",
        upstream=f"{SOURCE}/training/training.py",
        removed_when="upstream calls user code with a step's raw results",
        loses="accel-bridge parity record",
        requires=REQUIRES,
        parameters=(
            "forward_step_func",
            "data_iterator",
            "model",
            "optimizer",
            "opt_param_scheduler",
            "config",
            "forward_backward_func",
            "iteration",
            "pg_collection",
            "p2p_communicator",
        ),
        skip_when=_not_asked,
    ),
    Patch(
        id="record-gradients",
        target="megatron.core.distributed.finalize_model_grads:finalize_model_grads",
        kind=Kind.WRAP,
        make=_make_finalize,
        why="the optimizer clips gradients in place, so they must be measured before its step",
        upstream=f"{SOURCE}/core/distributed/finalize_model_grads.py",
        removed_when="upstream calls user code between backward pass and optimizer",
        loses="gradients of weights in recordings",
        requires=REQUIRES,
        parameters=("model", "num_tokens", "pg_collection", "force_all_reduce"),
        skip_when=_not_asked,
    ),
)
