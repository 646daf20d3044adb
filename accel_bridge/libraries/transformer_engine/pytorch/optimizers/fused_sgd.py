"""Stochastic gradient descent over all parameters at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch.optim.optimizer import required

from accel_bridge.libraries.sgd import ListSGD


class FusedSGD(ListSGD):
    """SGD with momentum, every parameter of a group in one call; see :class:`ListSGD`.

    :param set_grad_none: deprecated, see :meth:`zero_grad`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Any = required,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        wd_after_momentum: bool = False,
        materialize_master_grads: bool = True,
        set_grad_none: bool | None = None,
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
        if set_grad_none is not None:
            warnings.warn(
                "set_grad_none is deprecated; use set_to_none of zero_grad",
                DeprecationWarning,
                stacklevel=2,
            )

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients (the default), or fill them with zeros.

        :raises ValueError: ``set_to_none`` contradicts the constructor's ``set_grad_none``.
        """
        if self.set_grad_none is not None:
            if set_to_none not in (None, self.set_grad_none):
                raise ValueError(
                    f"zero_grad(set_to_none={set_to_none}), but FusedSGD was made with "
                    f"set_grad_none={self.set_grad_none}"
                )
            set_to_none = self.set_grad_none
        super().zero_grad(set_to_none=True if set_to_none is None else set_to_none)
