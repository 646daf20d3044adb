"""A run being recorded whose training loop is not Megatron's own, but stands on megatron.core.

Frameworks above Megatron write their own loop from three calls: the schedule that
``get_forward_backward_func`` gives, ``finalize_model_grads`` (which the schedule calls), and the
optimizer's ``step``. A step of such a loop begins with the first schedule that trains, and ends
with the optimizer. How many steps there will be is known to the loop alone, so the file is written
after each step that measures modules, and when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch
from megatron.core import parallel_state

from accel_bridge.errors import BridgeError
from accel_bridge.patches.modules.recorded_run import RecordedRun, unwrap
from accel_bridge.patching.host import Host
from accel_bridge.process.endings import end_with
from accel_bridge.recording.recorder import RankRecord, gather

#: Megatron's argument -> what a model's configuration calls it.
_RENAMED: Final = {"num_experts": "num_moe_experts", "norm_epsilon": "layernorm_epsilon"}
#: Names of the loss that is minimized, in the order in which they are looked for.
_LOSSES: Final = ("lm loss", "loss")


class LoopRun(RecordedRun):
    """A run whose steps go from a schedule to the optimizer.

    :param call: what the first schedule was called with.
    """

    def __init__(self, host: Host, call: Mapping[str, Any]) -> None:
        model = call["model"]
        self._model: Sequence[torch.nn.Module] = model if isinstance(model, list) else [model]
        super().__init__(host, self._model, arguments(self._model, call))
        self._open = False
        self._updating = False
        self._steps = 0
        self._losses: list[Mapping[str, Any]] = []
        self._ranks = [RankRecord() for _ in range(torch.distributed.get_world_size())]
        self._fingerprints: list[Any] = [None] * len(self._ranks)
        torch.distributed.all_gather_object(self._fingerprints, self.weights)
        if torch.distributed.get_rank() == 0 and self.plan.out:
            atexit.register(self._finish)

    def begin(self) -> None:
        """A schedule that trains begins; a step may have several."""
        if self._open:
            return
        self._open = True
        self._steps += 1
        scale = self._loss_scale()
        self.recorder.begin(
            self._steps,
            gradient_scale=self._activation_scale() / scale,
            weight_gradient_scale=1.0 / scale,
        )

    def trained(self, losses: object) -> None:
        """The schedule has ended.

        :param losses: a mapping for each micro batch on the last stage, else nothing.
        """
        if isinstance(losses, Sequence):
            self._losses += [one for one in losses if isinstance(one, Mapping)]

    def gradients_ready(self, tokens: torch.Tensor | None) -> None:
        """Gradients are summed over all ranks.

        :param tokens: by how many the gradients of weights were divided, if they were.
        """
        if not self._open:
            return
        if tokens is not None:
            scale = 1.0 / max(int(tokens), 1) / self._loss_scale()
            self.recorder.rescale_gradients(scale)
        self.recorder.gradients_ready()

    def update_begins(self) -> bool:
        """Whether this is the outermost ``step`` of an optimizer of the run."""
        outermost = self._open and not self._updating
        self._updating = self._updating or outermost
        return outermost

    def update_ends(self, result: object) -> None:
        """The outermost ``step`` has ended: (updated, gradient norm, zeros)."""
        self._updating = self._open = False
        norm = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        loss = mean_loss(self._losses)
        self._losses.clear()
        self.recorder.end(loss, float("nan") if norm is None else float(norm))
        self.capsule_ready(self._steps)
        for whole, new in zip(self._ranks, gather(self.recorder.record), strict=True):
            whole.steps += new.steps
            whole.observations += new.observations
        self.recorder.record = RankRecord()
        if torch.distributed.get_rank() == 0 and self.plan.measures_modules(self._steps):
            # What cannot be written now is no reason to end the training: the end tells.
            with contextlib.suppress(BridgeError):
                self._save(self._recording(self._ranks, self._fingerprints))

    def _finish(self) -> None:
        if not self._ranks[0].steps:
            return
        try:
            self._host.say(self._save(self._recording(self._ranks, self._fingerprints)))
        except BridgeError as error:
            atexit.unregister(self._finish)
            end_with(error)

    def _loss_scale(self) -> float:
        """Of float16; the schedule multiplies the loss by it."""
        scale = getattr(self._chunks[0].config, "grad_scale_func", None)
        return 1.0 if scale is None else float(scale(torch.ones(1, device="cuda")))


def mean_loss(losses: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over micro batches and data parallel ranks; None where no loss is known.

    :param losses: values are [sum, tokens], or the mean of a micro batch.
    """
    names = [name for name in _LOSSES if losses and name in losses[0]] or list(
        losses[0] if losses else ()
    )
    if not names:
        return None
    total = torch.zeros(2, dtype=torch.float64)
    for one in losses:
        value = torch.as_tensor(one[names[0]]).detach().double().flatten().cpu()
        if value.numel() == 1:
            value = torch.cat([value, torch.ones(1, dtype=torch.float64)])
        total += value[:2]
    # float32: not every communication library reduces float64.
    shared = total.to("cuda", torch.float32)
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    torch.distributed.all_reduce(shared, group=group)
    return float(shared[0] / shared[1].clamp(min=1))


def arguments(model: Sequence[torch.nn.Module], call: Mapping[str, Any]) -> SimpleNamespace:
    """What Megatron's arguments would say, from the model and the call of its schedule."""
    config = unwrap(model[0]).config
    found: dict[str, Any] = dict(vars(config))
    for name, other in _RENAMED.items():
        if hasattr(config, other):
            found[name] = getattr(config, other)
    data = parallel_state.get_data_parallel_world_size()
    found.update(
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        virtual_pipeline_model_parallel_size=len(model) if len(model) > 1 else None,
        context_parallel_size=parallel_state.get_context_parallel_world_size(),
        expert_model_parallel_size=parallel_state.get_expert_model_parallel_world_size(),
        data_parallel_size=data,
        seq_length=call.get("seq_length"),
        global_batch_size=data * call["micro_batch_size"] * call["num_microbatches"],
        use_distributed_optimizer=getattr(
            getattr(model[0], "ddp_config", None), "use_distributed_optimizer", False
        ),
        transformer_impl=getattr(config, "transformer_impl", "unknown"),
    )
    return SimpleNamespace(**found)
