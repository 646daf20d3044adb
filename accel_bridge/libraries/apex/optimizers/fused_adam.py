"""Adam over all parameters at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from accel_bridge.libraries.adam import multi_tensor_adam, multi_tensor_adam_capturable
from accel_bridge.libraries.tensor_lists import CHUNK

from ._lists import ListOptimizer


class FusedAdam(ListOptimizer):
    """Adam or AdamW, every parameter of a group in a few launches.

    Moments are float32, and the number of steps belongs to the group (``group["step"]``).

    :param params: parameters or groups of them, float32, float16 or bfloat16.
    :param lr: learning rate.
    :param bias_correction: divide the moments by ``1 - beta^step``.
    :param betas: decay of the two moments per step.
    :param eps: added to the root of the second moment.
    :param adam_w_mode: decoupled weight decay; otherwise it is added to the gradient.
    :param weight_decay: decay per unit of ``lr``.
    :param amsgrad: must be False.
    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    :param capturable: learning rate and step stay on the device, for CUDA graphs.
    :param master_weights: keep float32 main parameters; needs ``capturable``.
    :raises RuntimeError: ``amsgrad``, or ``master_weights`` without ``capturable``.
    """

    dtypes = (torch.float16, torch.bfloat16, torch.float32)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam has no AMSGrad variant")
        if master_weights and not capturable:
            raise RuntimeError("master_weights needs capturable=True")
        defaults = {
            "lr": torch.tensor(lr, dtype=torch.float32) if capturable else lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults, set_grad_none)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.capturable = capturable
        self.master_weights = master_weights
        if capturable:
            for group in self.param_groups:
                group["lr"] = group["lr"].to(self.device)
            # GradScaler then leaves unscaling and the check for infinities to step().
            self._step_supports_amp_scaling = True
        self.param_groups_master: list[dict[str, list[torch.Tensor]]] | None = None
        if master_weights:
            self.param_groups_master = [
                {"params": [param.detach().clone().float() for param in group["params"]]}
                for group in self.param_groups
            ]

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = None,
        grad_norms: Any = None,
        grad_scaler: Any = None,
    ) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :param grad_scaler: with ``capturable``, its scale is taken off the gradients, and the step
            is left out where they are not finite.
        :returns: what ``closure`` returns.
        :raises RuntimeError: options of old versions of Apex, a sparse gradient, or a parameter of
            another dtype.
        """
        if any(one is not None for one in (grads, output_params, scale, grad_norms)):
            raise RuntimeError("FusedAdam.step takes no grads, output_params, scale or grad_norms")
        loss = None if closure is None else closure()
        for index, group in enumerate(self.param_groups):
            if not group["params"]:
                continue
            if self.capturable:
                self._step_captured(index, group, grad_scaler)
                continue
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for members in self._by_dtype(index, group):
                multi_tensor_adam(
                    CHUNK,
                    self._dummy_overflow_buf,
                    members,
                    group["lr"],
                    beta1,
                    beta2,
                    group["eps"],
                    group["step"],
                    self.adam_w_mode,
                    1 if group["bias_correction"] else 0,
                    group["weight_decay"],
                )
        return loss

    def _by_dtype(self, index: int, group: dict[str, Any]) -> list[list[list[torch.Tensor]]]:
        """Lists of gradients, parameters, moments and main parameters, for each dtype."""
        masters = self.param_groups_master
        beside = None if masters is None else masters[index]["params"]
        states = dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.float32)
        return list(self.lists(group, states, beside).values())

    def _step_captured(self, index: int, group: dict[str, Any], grad_scaler: Any) -> None:
        device = group["params"][0].device
        if "step" in group:
            # In place: a captured graph holds the tensor.
            group["step"] += (self._dummy_overflow_buf != 1).to(torch.int)
        else:
            group["step"] = torch.ones(1, dtype=torch.int, device=device)
        if grad_scaler is None:
            self._dummy_overflow_buf.zero_()
            inverse = torch.ones(1, device=device)
        else:
            self._dummy_overflow_buf.copy_(grad_scaler._check_inf_per_device(self)[device])
            inverse = grad_scaler._get_scale_async().double().reciprocal().float()
        beta1, beta2 = group["betas"]
        for members in self._by_dtype(index, group):
            multi_tensor_adam_capturable(
                CHUNK,
                self._dummy_overflow_buf,
                members,
                group["lr"],
                beta1,
                beta2,
                group["eps"],
                group["step"],
                self.adam_w_mode,
                1 if group["bias_correction"] else 0,
                group["weight_decay"],
                inverse,
            )
