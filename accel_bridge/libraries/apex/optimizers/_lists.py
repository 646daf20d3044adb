"""What Apex's optimizers have in common: one call for all tensors of a dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch


def gradients_of(groups: Iterable[Mapping[str, Any]]) -> list[torch.Tensor]:
    """The gradients of all parameters of an optimizer's groups, in order."""
    params = (param for group in groups for param in group["params"])
    return [param.grad for param in params if param.grad is not None]


class ListOptimizer(torch.optim.Optimizer):
    """An optimizer that counts steps by group (``group["step"]``).

    :param params: parameters or groups of them.
    :param defaults: options of a group that gives none.
    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    """

    #: Of the parameters that it takes.
    dtypes: ClassVar[Sequence[torch.dtype]] = (torch.float16, torch.float32)

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], set_grad_none: bool
    ) -> None:
        super().__init__(params, defaults)
        self.set_grad_none = set_grad_none
        self.device = next(
            (param.device for group in self.param_groups for param in group["params"]),
            torch.device("cuda"),
        )
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device=self.device)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, or fill them with zeros; None for what the constructor says."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    def lists(
        self,
        group: dict[str, Any],
        states: Mapping[str, torch.dtype | None],
        beside: Sequence[torch.Tensor] | None = None,
    ) -> dict[torch.dtype, list[list[torch.Tensor]]]:
        """Lists of gradients, parameters and states, for each dtype.

        :param states: names of states, made where they are missing, and their dtype; None for the
            parameter's.
        :param beside: one more tensor for each of the group's parameters.
        :raises RuntimeError: a sparse gradient, or a parameter of a dtype that it does not take.
        """
        name = type(self).__name__
        found: dict[torch.dtype, list[list[torch.Tensor]]] = {}
        for number, param in enumerate(group["params"]):
            if param.grad is None:
                continue
            if param.grad.is_sparse:
                raise RuntimeError(f"{name} takes no sparse gradients")
            if param.dtype not in self.dtypes:
                raise RuntimeError(f"{name} takes {self.dtypes}, not {param.dtype}")
            state = self.state[param]
            for key, dtype in states.items():
                if key not in state:
                    state[key] = torch.zeros_like(param.detach(), dtype=dtype)
            tensors = [param.grad, param.detach(), *(state[key] for key in states)]
            if beside is not None:
                tensors.append(beside[number])
            members = found.setdefault(param.dtype, [[] for _ in tensors])
            for one, tensor in zip(members, tensors, strict=True):
                one.append(tensor)
        return found
