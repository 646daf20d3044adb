"""Adam over all parameters at once, with main weights and moments in several precisions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor

from accel_bridge.libraries.adam import batches

from ._adam_states import STATES, AdamStates, is_quantized
from .multi_tensor import (
    multi_tensor_adam,
    multi_tensor_adam_capturable,
    multi_tensor_adam_capturable_master,
    multi_tensor_adam_fp8,
    multi_tensor_adam_param_remainder,
)
from .multi_tensor_apply import multi_tensor_applier

_MOMENTS: Final = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
_HALF: Final = (torch.float16, torch.bfloat16)


class _Lists:
    """Tensors of one kind of parameter, in the order that the operations take."""

    def __init__(self) -> None:
        self.lists: list[list[torch.Tensor]] = [[] for _ in range(5)]
        self.fp8: list[list[torch.Tensor]] = [[] for _ in range(3)]

    def add(self, *tensors: torch.Tensor | None) -> None:
        """Gradient, parameter, both moments and the main parameter, or None for it."""
        for tensors_so_far, tensor in zip(self.lists, tensors, strict=True):
            if tensor is not None:
                tensors_so_far.append(tensor)


class FusedAdam(AdamStates):
    """Adam or AdamW, every parameter of a group in a few launches.

    As in the real class the number of steps belongs to the group (``group["step"]``).

    :param params: parameters or groups of them, float32, float16, bfloat16 or FP8.
    :param lr: learning rate.
    :param betas: decay of the two moments per step.
    :param eps: added to the root of the second moment.
    :param weight_decay: decay per unit of ``lr``.
    :param amsgrad: must be False.
    :param bias_correction: divide the moments by ``1 - beta^step``.
    :param adam_w_mode: decoupled weight decay; otherwise it is added to the gradient.
    :param capturable: learning rate and step stay on the device, for CUDA graphs.
    :param master_weights: keep main parameters; any true value counts.
    :param master_weight_dtype: float32, or float16 with a scale for each tensor.
    :param exp_avg_dtype: float32, bfloat16, or float16 and uint8 (FP8) with a scale.
    :param exp_avg_sq_dtype: as ``exp_avg_dtype``.
    :param use_decoupled_grad: read ``parameter.decoupled_grad`` instead of ``parameter.grad``.
    :param store_param_remainders: of a bfloat16 parameter's float32 main parameter keep only the 16
        bits that the parameter lacks, as int16.
    :param set_grad_none: deprecated, see :meth:`zero_grad`.
    :raises RuntimeError: a combination that the real class refuses.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        capturable: bool = False,
        master_weights: Any = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        set_grad_none: bool | None = None,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam has no AMSGrad variant")
        if master_weights and master_weight_dtype not in (torch.float32, torch.float16):
            raise RuntimeError(f"main weights are float32 or float16, not {master_weight_dtype}")
        for name, dtype in (("exp_avg", exp_avg_dtype), ("exp_avg_sq", exp_avg_sq_dtype)):
            if dtype not in _MOMENTS:
                raise RuntimeError(f"{name} is fp32, fp16, bf16 or fp8 (uint8), not {dtype}")
        self.store_param_remainders = (
            store_param_remainders and bool(master_weights) and master_weight_dtype is torch.float32
        )
        if capturable:
            # Other dtypes need copies at each step, whose addresses a CUDA graph cannot keep.
            if master_weights and master_weight_dtype is not torch.float32:
                raise RuntimeError("capturable=True needs float32 main weights")
            if exp_avg_dtype != exp_avg_sq_dtype or exp_avg_dtype not in (
                torch.float32,
                torch.bfloat16,
            ):
                raise RuntimeError(
                    "capturable=True needs both moments in float32 or both in bfloat16, not "
                    f"{exp_avg_dtype} and {exp_avg_sq_dtype}"
                )
            if self.store_param_remainders:
                raise RuntimeError("capturable=True does not store remainders of parameters")
        defaults = {
            "lr": torch.tensor(lr, dtype=torch.float32) if capturable else lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.capturable = capturable
        self.master_weights = master_weights
        if capturable:
            for group in self.param_groups:
                if group["params"]:
                    group["lr"] = group["lr"].to(group["params"][0].device)
            # GradScaler then leaves unscaling and the check for infinities to step().
            self._step_supports_amp_scaling = True
        self._dummy_overflow_buf = torch.zeros(1, dtype=torch.int32, device=self._device())
        self.master_weight_dtype = master_weight_dtype
        self.exp_avg_dtype = exp_avg_dtype
        self.exp_avg_sq_dtype = exp_avg_sq_dtype
        self.name_to_dtype_map = {
            "exp_avg": exp_avg_dtype,
            "exp_avg_sq": exp_avg_sq_dtype,
            "master_param": master_weight_dtype,
        }
        self._scales = {}
        self.use_decoupled_grad = use_decoupled_grad
        self.set_grad_none = set_grad_none
        if set_grad_none is not None:
            warnings.warn(
                "set_grad_none is deprecated; use set_to_none of zero_grad",
                DeprecationWarning,
                stacklevel=2,
            )

    def _device(self) -> torch.device:
        for group in self.param_groups:
            for parameter in group["params"]:
                return torch.device(parameter.device)
        return torch.device("cuda")

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients (the default), or fill them with zeros.

        :raises ValueError: ``set_to_none`` contradicts the constructor's ``set_grad_none``.
        """
        if self.set_grad_none is not None:
            if set_to_none not in (None, self.set_grad_none):
                raise ValueError(
                    f"zero_grad(set_to_none={set_to_none}), but FusedAdam was made with "
                    f"set_grad_none={self.set_grad_none}"
                )
            set_to_none = self.set_grad_none
        drop = True if set_to_none is None else set_to_none
        if not self.use_decoupled_grad:
            super().zero_grad(set_to_none=drop)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if drop:
                    parameter.decoupled_grad = None
                elif getattr(parameter, "decoupled_grad", None) is not None:
                    parameter.decoupled_grad.zero_()

    # The step.

    def step(self, closure: Callable[[], Any] | None = None, grad_scaler: Any = None) -> Any:
        """One step.

        :param closure: evaluates the model again and returns the loss.
        :param grad_scaler: with ``capturable``, its scale is taken off the gradients, and the step
            is left out where they are not finite.
        :returns: what ``closure`` returns.
        :raises RuntimeError: a sparse gradient, or parameters that cannot be updated together.
        """
        loss = None if closure is None else closure()
        for group in self.param_groups:
            if not group["params"]:
                continue
            if self.capturable:
                one: Any = (self._dummy_overflow_buf != 1).to(torch.int)
                first: Any = torch.ones(1, dtype=torch.int, device=group["params"][0].device)
            else:
                one = first = 1
            if "step" in group:
                # In place: a captured graph holds the tensor.
                group["step"] += one
            else:
                group["step"] = first
            for params in self._parts(group["params"]):
                self._step_part(group, params, grad_scaler)
        return loss

    def _parts(self, params: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Parameters that are updated together: few at a time where states need float32 copies."""
        if not any(self._is_scaled(name) for name in STATES):
            yield params
            return
        for part in batches(params):
            yield params[part]

    def _step_part(
        self, group: dict[str, Any], params: list[torch.Tensor], grad_scaler: Any
    ) -> None:
        whole, half, fp8 = _Lists(), _Lists(), _Lists()
        rescaled: list[tuple[torch.Tensor, str, torch.Tensor]] = []
        scaled = [name for name in STATES if self._is_scaled(name)]
        grad_name = "decoupled_grad" if self.use_decoupled_grad else "grad"
        dtypes = set()
        fp8_dtype: Any = None
        for param in params:
            if not self.state[param]:
                self.initialize_state(param, self._keeps_remainder(param))
            gradient = getattr(param, grad_name, None)
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise RuntimeError("FusedAdam takes no sparse gradients")
            states: dict[str, torch.Tensor] = dict(self.state[param])
            for name in scaled:
                states[name] = self.get_unscaled_state(param, name)
                rescaled.append((param, name, states[name]))
            main = states.get("master_param")
            moments = states["exp_avg"], states["exp_avg_sq"]
            local: Any = param._local_tensor if isinstance(param, DTensor) else param
            if is_quantized(local):
                if self.capturable:
                    raise RuntimeError("FusedAdam takes no FP8 parameters with capturable=True")
                data, *scales = _fp8_parts(local)
                for tensors, scale in zip(fp8.fp8, scales, strict=True):
                    tensors.append(scale)
                fp8_dtype = local._fp8_dtype
                fp8.add(gradient.detach(), data, *moments, main)
            elif local.dtype in _HALF:
                dtypes.add(local.dtype)
                half.add(gradient.detach(), param.detach(), *moments, main)
            elif local.dtype is torch.float32:
                whole.add(gradient.detach(), param.detach(), *moments, None)
            else:
                raise RuntimeError(f"FusedAdam takes fp32, fp16, bf16 and fp8, not {local.dtype}")
        if len(dtypes) == 2:
            raise RuntimeError("FusedAdam takes no group with both float16 and bfloat16 parameters")
        if self.capturable:
            self._step_captured(group, whole, half, grad_scaler)
        else:
            remainders = self.store_param_remainders and torch.bfloat16 in dtypes
            self._apply(
                multi_tensor_adam_param_remainder if remainders else multi_tensor_adam, half, group
            )
            if fp8.lists[0] and self.master_weights:
                self._apply(multi_tensor_adam_fp8, fp8, group, fp8_dtype)
            self._apply(multi_tensor_adam, whole, group)
        for param, name, value in rescaled:
            self._apply_scale(param, name, value)

    def _step_captured(
        self, group: dict[str, Any], whole: _Lists, half: _Lists, grad_scaler: Any
    ) -> None:
        device = group["params"][0].device
        if grad_scaler is None:
            self._dummy_overflow_buf.zero_()
            inverse = torch.ones(1, device=device)
        else:
            self._dummy_overflow_buf.copy_(grad_scaler._check_inf_per_device(self)[device])
            inverse = grad_scaler._get_scale_async().double().reciprocal().float()
        self._apply(multi_tensor_adam_capturable_master, half, group, inverse)
        self._apply(multi_tensor_adam_capturable, whole, group, inverse)

    def _apply(
        self, operation: Callable[..., None], tensors: _Lists, group: dict[str, Any], *more: Any
    ) -> None:
        lists = [one for one in (*tensors.lists, *tensors.fp8) if one]
        if lists:
            multi_tensor_applier(
                operation,
                self._dummy_overflow_buf,
                lists,
                group["lr"],
                *group["betas"],
                group["eps"],
                group["step"],
                self.adam_w_mode,
                1 if group["bias_correction"] else 0,
                group["weight_decay"],
                *more,
            )


def _fp8_parts(tensor: Any) -> tuple[Any, ...]:
    """Data, scale, amax and inverse scale of an FP8 parameter."""
    from ..tensor.float8_tensor import Float8Tensor

    assert isinstance(tensor, Float8Tensor), f"FusedAdam takes Float8Tensor, not {type(tensor)}"
    quantizer = tensor._quantizer
    if quantizer is None:
        raise RuntimeError("this FP8 parameter has no quantizer, so its scale is not known")
    return tensor._data, quantizer.scale, quantizer.amax, tensor._scale_inv
