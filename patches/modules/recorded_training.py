"""A run of Megatron's own training loop being recorded."""

from __future__ import annotations

from typing import Any

import torch
from megatron.training import get_args

from accel_bridge.errors import BridgeError
from accel_bridge.patches._failure import Failure
from accel_bridge.patches.modules import recorded_weights
from accel_bridge.patches.modules.recorded_run import RecordedRun
from accel_bridge.patching.host import Host
from accel_bridge.recording.recorder import gather


class TrainingRun(RecordedRun):
    """A run whose steps are calls of Megatron's ``train_step``.

    :param model: Megatron's list of wrapped model chunks.
    :param optimizer: Megatron's optimizer.
    :param failure: keeps why the file could not be written, where somebody waits for that.
    """

    def __init__(
        self, host: Host, model: list[torch.nn.Module], optimizer: Any, failure: Failure
    ) -> None:
        self._optimizer = optimizer
        self._failure = failure
        self._last = 0
        super().__init__(host, model, get_args())

    def begin(self, iteration: int | None) -> None:
        """A step begins; Megatron counts from 0 and may leave the count out."""
        self._last = self._last + 1 if iteration is None else iteration + 1
        loss_scale = float(self._optimizer.get_loss_scale())
        self.recorder.begin(
            self._last,
            gradient_scale=self._activation_scale() / loss_scale,
            weight_gradient_scale=1.0 / loss_scale,
        )

    def end(self, losses: dict[str, torch.Tensor], gradient_norm: float | None) -> None:
        """The step has ended; the last one writes the file.

        :param losses: Megatron's losses of the step, empty on all but the last stage.
        """
        loss = float(losses["lm loss"]) if "lm loss" in losses else None
        norm = float("nan") if gradient_norm is None else float(gradient_norm)
        self.recorder.end(loss, norm)
        self.capsule_ready(self._last)
        if self._last in (self._args.train_iters, self.plan.last):
            self._write()
            if self._last == self.plan.last:
                self.leave()

    def _write(self) -> None:
        records = gather(self.recorder.record)
        weights: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(weights, self.weights)
        if torch.distributed.get_rank() == 0:
            try:
                self._host.say(self._save(self._recording(records, weights)))
            except BridgeError as error:
                if not self._failure.waits:
                    raise
                self._failure.error = error

    def _set_weights(self) -> None:
        args = self._args
        given = args.load or args.pretrained_checkpoint
        if given:
            self.notes.append("initial weights: from a checkpoint")
            return
        recorded_weights.draw_weights(self._chunks, args.init_method_std, args.num_layers)
        self._optimizer.reload_model_params()
        note = "initial weights: drawn by parameter name, the same on every machine and layout"
        self.notes.append(note)
        self._host.say(f"{note} (--load takes those of a checkpoint)")
