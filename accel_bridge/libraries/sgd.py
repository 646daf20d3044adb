"""The SGD of Apex and of Transformer Engine, every parameter of a group in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, required

from accel_bridge.libraries.tensor_lists import CHUNK, sgd


class ListSGD(Optimizer):
    """SGD with momentum; the libraries' classes name its options.

    :param params: parameters or groups of them, float32 or float16.
    :param lr: learning rate.
    :param momentum: decay of the velocity; 0 for none.
    :param dampening: share of the gradient that does not enter the velocity.
    :param weight_decay: decay, added to the gradient.
    :param nesterov: look ahead along the velocity.
    :param wd_after_momentum: add the decay after the momentum instead of before.
    :param materialize_master_grads: with Apex's AMP, gradients are those of the main parameters.
    :raises ValueError: a negative number, or Nesterov momentum without momentum or with dampening.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Any,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: bool,
        wd_after_momentum: bool,
        materialize_master_grads: bool,
    ) -> None:
        if lr is not required and lr < 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if momentum < 0.0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if weight_decay < 0.0:
            raise ValueError(f"Invalid weight_decay value: {weight_decay}")
        if nesterov and (momentum <= 0.0 or dampening != 0.0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)
        self.wd_after_momentum = wd_after_momentum
        self.materialize_master_grads = materialize_master_grads
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        self._dummy_overflow_buf = torch.zeros(
            1, dtype=torch.int32, device=self.param_groups[0]["params"][0].device
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def get_momentums(self, params: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], bool]:
        """The parameters' velocities, made where they are missing.

        :returns: the velocities, and whether the last parameter's was made now.
        """
        momentums = []
        first_run = True
        for param in params:
            state = self.state[param]
            first_run = "momentum_buffer" not in state
            if first_run:
                state["momentum_buffer"] = torch.zeros_like(param.detach())
            momentums.append(state["momentum_buffer"])
        return momentums, first_run

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :returns: what ``closure`` returns.
        """
        loss = None if closure is None else closure()
        for index, group in enumerate(self.param_groups):
            for gradients, parameters, *copies in self._sets(index, group):
                if not gradients:
                    continue
                momentums, first_run = self.get_momentums(parameters)
                sgd(
                    CHUNK,
                    self._dummy_overflow_buf,
                    [gradients, parameters, momentums, *copies],
                    group["weight_decay"],
                    group["momentum"],
                    group["dampening"],
                    group["lr"],
                    group["nesterov"],
                    first_run,
                    self.wd_after_momentum,
                    1.0 / self.most_recent_scale,
                )
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        return loss

    def _sets(self, index: int, group: dict[str, Any]) -> list[list[list[Any]]]:
        """Gradients, parameters and perhaps float16 copies that are updated in one call each."""
        stash: Any = getattr(self, "_amp_stash", None)
        if stash is None or not hasattr(stash, "fp32_from_fp16_groups"):
            parameters = [param for param in group["params"] if param.grad is not None]
            by_dtype = (
                [param for param in parameters if param.dtype is dtype]
                for dtype in (torch.float16, torch.float32)
            )
            return [[[param.grad for param in params], params] for params in by_dtype]
        whole = [param for param in stash.fp32_from_fp32_groups[index] if param.grad is not None]
        pairs = zip(stash.fp16_groups[index], stash.fp32_from_fp16_groups[index], strict=True)
        sources = [
            (main if self.materialize_master_grads else model, main, model) for model, main in pairs
        ]
        sources = [one for one in sources if one[0].grad is not None]
        half = [
            [source.grad for source, _, _ in sources],
            [main for _, main, _ in sources],
            [model for _, _, model in sources],
        ]
        return [half, [[param.grad for param in whole], whole]]
