"""LAMB over all parameters at once (You et al. 2019, arXiv:1904.00962)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from accel_bridge.libraries.lists_by_layer import lamb
from accel_bridge.libraries.tensor_lists import CHUNK, l2norm

from ._lists import ListOptimizer, gradients_of


class FusedLAMB(ListOptimizer):
    """LAMB: Adam's update, scaled for each tensor by its norm over the update's.

    :param params: parameters or groups of them, float32 or float16.
    :param lr: learning rate.
    :param bias_correction: divide the moments by ``1 - beta^step``.
    :param betas: decay of the two moments per step.
    :param eps: added to the root of the second moment.
    :param weight_decay: decay, before the scaling; tensors without it are scaled with
        ``use_nvlamb`` only.
    :param amsgrad: must be False.
    :param adam_w_mode: decay joins the update; otherwise the gradient.
    :param grad_averaging: the first moment takes ``1 - beta1`` of a gradient, otherwise all.
    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    :param max_grad_norm: gradients of a larger norm, all groups together, are scaled to it.
    :raises RuntimeError: ``amsgrad``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedLAMB has no AMSGrad variant")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults, set_grad_none)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.use_nvlamb = use_nvlamb

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :returns: what ``closure`` returns.
        :raises RuntimeError: a sparse gradient, or a parameter of another dtype.
        """
        loss = None if closure is None else closure()
        flag = self._dummy_overflow_buf
        norm = l2norm(CHUNK, flag, [gradients_of(self.param_groups)])[0]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for members in self.lists(group, {"exp_avg": None, "exp_avg_sq": None}).values():
                lamb(
                    CHUNK,
                    flag,
                    members,
                    group["lr"],
                    group["betas"][0],
                    group["betas"][1],
                    group["eps"],
                    group["step"],
                    int(group["bias_correction"]),
                    group["weight_decay"],
                    int(group["grad_averaging"]),
                    self.adam_w_mode,
                    norm,
                    self.defaults["max_grad_norm"],
                    self.use_nvlamb,
                )
        return loss
