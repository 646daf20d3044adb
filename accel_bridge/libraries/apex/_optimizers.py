"""Optimizers that update all parameters at once, and the calls that take many tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

import torch
from torch.optim.optimizer import required

from accel_bridge.libraries.adam import multi_tensor_adam, multi_tensor_adam_capturable
from accel_bridge.libraries.tensor_lists import (
    CHUNK,
    adagrad,
    l2norm,
    lamb,
    lamb_mixed,
    novograd,
    sgd,
)

R = TypeVar("R")


class MultiTensorApply:
    """Calls an operation on lists of tensors.

    :param chunk_size: elements that one block of the real library's kernels works on; operations
        take it as their first argument.
    """

    #: Whether the operations exist; callers of the real class ask before they use it.
    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self,
        op: Callable[..., R],
        noop_flag_buffer: torch.Tensor,
        tensor_lists: list[list[torch.Tensor]],
        *args: Any,
    ) -> R:
        """``op(chunk_size, noop_flag_buffer, tensor_lists, *args)``."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def gradients_of(groups: Iterable[Mapping[str, Any]]) -> list[torch.Tensor]:
    """The gradients of all parameters of an optimizer's groups, in order."""
    params = (param for group in groups for param in group["params"])
    return [param.grad for param in params if param.grad is not None]


def _adam_numbers(group: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
    """Of a group, what every variant of Adam takes first."""
    beta1, beta2 = group["betas"]
    return group["lr"], beta1, beta2, group["eps"], group["step"]


def _averaging_numbers(group: Mapping[str, Any]) -> tuple[int, Any, int]:
    """What those take next whose first moment may be an average."""
    decay = group["weight_decay"]
    return int(group["bias_correction"]), decay, int(group["grad_averaging"])


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
            for members in self._by_dtype(index, group):
                multi_tensor_adam(CHUNK, self._dummy_overflow_buf, members, *self._numbers(group))
        return loss

    def _by_dtype(self, index: int, group: dict[str, Any]) -> list[list[list[torch.Tensor]]]:
        """Lists of gradients, parameters, moments and main parameters, for each dtype."""
        masters = self.param_groups_master
        beside = None if masters is None else masters[index]["params"]
        states = dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.float32)
        return list(self.lists(group, states, beside).values())

    def _numbers(self, group: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any, int, int, Any]:
        bias_correction = 1 if group["bias_correction"] else 0
        return *_adam_numbers(group), self.adam_w_mode, bias_correction, group["weight_decay"]

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
        for members in self._by_dtype(index, group):
            multi_tensor_adam_capturable(
                CHUNK, self._dummy_overflow_buf, members, *self._numbers(group), inverse
            )


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
                    *_adam_numbers(group),
                    *_averaging_numbers(group),
                    self.adam_w_mode,
                    norm,
                    self.defaults["max_grad_norm"],
                    self.use_nvlamb,
                )
        return loss


class FusedMixedPrecisionLamb(torch.optim.Optimizer):
    """LAMB for mixed precision; options as :class:`FusedLAMB`.

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
                *_adam_numbers(group),
                *_averaging_numbers(group),
                self.adam_w_mode,
                norm,
                self.defaults["max_grad_norm"] * scale,
                self.use_nvlamb,
                found,
                inverse,
            )
        return loss


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
                        *_adam_numbers(group),
                        *_averaging_numbers(group),
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


class FusedSGD(torch.optim.Optimizer):
    """SGD with momentum, every parameter of a group in one call.

    :param params: parameters or groups of them, float32 or float16.
    :param lr: learning rate.
    :param momentum: decay of the velocity; 0 for none.
    :param dampening: share of the gradient that does not enter the velocity.
    :param weight_decay: decay, added to the gradient.
    :param nesterov: look ahead along the velocity.
    :param wd_after_momentum: add the decay after the momentum instead of before.
    :param materialize_master_grads: with Apex's AMP, gradients are those of the main parameters.
    :param set_grad_none: :meth:`zero_grad` drops the gradients.
    :raises ValueError: a negative number, or Nesterov momentum without momentum or with dampening.
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
        self.set_grad_none = set_grad_none
        self.most_recent_scale = 1.0
        self.scale_set_by_backward = False
        self._dummy_overflow_buf = torch.zeros(
            1, dtype=torch.int32, device=self.param_groups[0]["params"][0].device
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients, or fill them with zeros; None for what the constructor says."""
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

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
