"""Stochastic gradient descent over all parameters at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim.optimizer import required

from accel_bridge.libraries.sgd import ListSGD


class FusedSGD(ListSGD):
    """SGD with momentum, every parameter of a group in one call; see :class:`ListSGD`.

    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Any = required,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            wd_after_momentum,
            materialize_master_grads,
        )
        self.set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, or fill them with zeros; None for what the constructor says."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)
