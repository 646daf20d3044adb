"""Adagrad over all parameters at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accel_bridge.libraries.lists_by_layer import adagrad
from accel_bridge.libraries.tensor_lists import CHUNK

from ._lists import ListOptimizer


class FusedAdagrad(ListOptimizer):
    """Adagrad: each value's step is divided by the root of the sum of its squared gradients.

    :param params: parameters or groups of them, float32 or float16.
    :param lr: learning rate.
    :param eps: added to the root.
    :param weight_decay: decay, added to the gradient, or to the update with ``adagrad_w_mode``.
    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults, set_grad_none)
        self.adagrad_w_mode = 1 if adagrad_w_mode else 0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :returns: what ``closure`` returns.
        :raises RuntimeError: a sparse gradient, or a parameter of another dtype.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            numbers = group["lr"], group["eps"], self.adagrad_w_mode, group["weight_decay"]
            for members in self.lists(group, {"sum": None}).values():
                adagrad(CHUNK, self._dummy_overflow_buf, members, *numbers)
        return loss
