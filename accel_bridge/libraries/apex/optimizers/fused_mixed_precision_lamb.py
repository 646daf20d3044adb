"""LAMB with float32 main parameters, and its numbers on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from accel_bridge.libraries.lists_by_layer import lamb_mixed
from accel_bridge.libraries.tensor_lists import CHUNK, l2norm

from ._lists import gradients_of


class FusedMixedPrecisionLamb(torch.optim.Optimizer):
    """LAMB for mixed precision; options as :class:`.fused_lamb.FusedLAMB`.

    Learning rate and step are tensors of the device (``group["lr"]``, ``group["step"]``).

    :param step: where the count begins.
    :param reduced_precision_dtype: parameters of this dtype get float32 main parameters, made in
        the first step; None for none.
    :raises RuntimeError: ``amsgrad``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        step: int = 0,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        max_grad_norm: float = 1.0,
        use_nvlamb: bool = False,
        reduced_precision_dtype: torch.dtype | None = None,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedMixedPrecisionLamb has no AMSGrad variant")
        defaults = {
            "lr": torch.tensor(lr, dtype=torch.float32),
            "step": torch.tensor([step], dtype=torch.int),
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults)
        self.device = self.param_groups[0]["params"][0].device
        for group in self.param_groups:
            for name in ("lr", "step"):
                group[name] = group[name].to(self.device)
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.reduced_precision_dtype = reduced_precision_dtype
        self.param_groups_full_precision: list[dict[str, list[torch.Tensor | None]]] = []
        # GradScaler then leaves unscaling and the check for infinities to step().
        self._step_supports_amp_scaling = True
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.use_nvlamb = use_nvlamb

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; as in Apex, it gets copies of the default ``lr`` and ``step``."""
        super().add_param_group(param_group)
        for name, default in self.defaults.items():
            if isinstance(default, torch.Tensor):
                self.param_groups[-1][name] = default.clone()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load, and keep the states' own dtype: torch would round them to the parameters'."""
        super().load_state_dict(state_dict)
        params = [param for group in self.param_groups for param in group["params"]]
        for number, saved in state_dict["state"].items():
            for name, value in saved.items():
                self.state[params[number]][name] = value.to(params[number].device, copy=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :param grad_scaler: its scale is taken off the gradients, and the step is left out where
            they are not finite.
        :returns: what ``closure`` returns.
        """
        loss = None if closure is None else closure()
        reduced, flag = self.reduced_precision_dtype, self._dummy_overflow_buf
        if not self.param_groups_full_precision:
            self.param_groups_full_precision = [
                {
                    "params": [
                        p.detach().to(torch.float32, copy=True) if p.dtype == reduced else None
                        for p in params
                    ]
                }
                for params in (group["params"] for group in self.param_groups)
            ]
        found = scale = inverse = torch.ones(1, device=self.device)
        if grad_scaler is None:
            flag.zero_()
        else:
            found = grad_scaler._check_inf_per_device(self)[self.device]
            flag.copy_(found)
            scale = grad_scaler._get_scale_async()
            inverse = scale.double().reciprocal().float()
        norm = l2norm(CHUNK, flag, [gradients_of(self.param_groups)])[0]  # of scaled gradients
        for group, full in zip(self.param_groups, self.param_groups_full_precision, strict=True):
            group["step"] += (flag != 1).to(torch.int)
            members: list[list[torch.Tensor]] = [[] for _ in range(4 if reduced is None else 5)]
            for param, main in zip(group["params"], full["params"], strict=True):
                if param.grad is None:
                    continue
                weight = param.detach() if main is None else main
                state = self.state[param]
                for name in ("exp_avg", "exp_avg_sq"):
                    if name not in state:
                        state[name] = torch.zeros_like(weight)
                tensors = (
                    param.grad,
                    weight,
                    state["exp_avg"],
                    state["exp_avg_sq"],
                    param.detach(),
                )
                for one, tensor in zip(members, tensors, strict=False):
                    one.append(tensor)
            lamb_mixed(
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
                self.defaults["max_grad_norm"] * scale,
                self.use_nvlamb,
                found,
                inverse,
            )
        return loss
