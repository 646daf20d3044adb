"""NovoGrad over all parameters at once (Ginsburg et al. 2019, arXiv:1905.11286)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from accel_bridge.libraries.lists_by_layer import novograd
from accel_bridge.libraries.tensor_lists import CHUNK

from ._lists import ListOptimizer

#: ``norm_type`` -> order of the norm.
_ORDERS: Final = {0: float("inf"), 2: 2.0}


class FusedNovoGrad(ListOptimizer):
    """NovoGrad: Adam with one second moment for each tensor, ``group["exp_avg_sq"]``.

    That is a list of the norms, not squared, of float16 and of float32 parameters.

    :param params: parameters or groups of them, float32 or float16.
    :param lr: learning rate.
    :param bias_correction: divide the moments by ``1 - beta^step``.
    :param betas: decay of the two moments per step.
    :param eps: added to the norm.
    :param weight_decay: decay, in the first moment with ``reg_inside_moment``, behind it without.
    :param amsgrad: must be False.
    :param reg_inside_moment: normalize and decay before the first moment.
    :param grad_averaging: the first moment takes ``1 - beta1`` of a gradient, otherwise all.
    :param norm_type: 2 for L2, 0 for the largest value.
    :param init_zero: norms begin with 0 instead of the first gradients'.
    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    :raises RuntimeError: ``amsgrad``, or another ``norm_type``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: int = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedNovoGrad has no AMSGrad variant")
        if norm_type not in _ORDERS:
            raise RuntimeError(f"norm_type is 2 or 0, not {norm_type}")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults, set_grad_none)
        self.moment_mode = 0 if reg_inside_moment else 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, with the norms where the parameters are."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            if group["params"] and "exp_avg_sq" in group:
                group["exp_avg_sq"] = [norms.to(self.device) for norms in group["exp_avg_sq"]]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :returns: what ``closure`` returns.
        :raises RuntimeError: a sparse gradient, a parameter of another dtype, or other parameters
            with gradients than in the first step.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            lists = self.lists(group, {"exp_avg": None})
            if "exp_avg_sq" not in group:
                group["exp_avg_sq"] = [
                    self._first(group, lists[dtype][0] if dtype in lists else [])
                    for dtype in self.dtypes
                ]
            for dtype, norms in zip(self.dtypes, group["exp_avg_sq"], strict=True):
                members = lists.get(dtype, [[]])
                if len(members[0]) != len(norms):
                    raise RuntimeError("FusedNovoGrad wants gradients of the same parameters")
                if members[0]:
                    novograd(
                        CHUNK,
                        self._dummy_overflow_buf,
                        members,
                        norms,
                        group["lr"],
                        group["betas"][0],
                        group["betas"][1],
                        group["eps"],
                        group["step"],
                        int(group["bias_correction"]),
                        group["weight_decay"],
                        int(group["grad_averaging"]),
                        self.moment_mode,
                        group["norm_type"],
                    )
        return loss

    def _first(self, group: dict[str, Any], gradients: list[torch.Tensor]) -> torch.Tensor:
        """Norms before the first step, float32 [gradients]."""
        if group["init_zero"] or not gradients:
            return torch.zeros(len(gradients), device=self.device)
        order = _ORDERS[group["norm_type"]]
        return torch.stack([torch.linalg.vector_norm(one.float(), order) for one in gradients])
