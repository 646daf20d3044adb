"""Operators over lists of tensors, as optimizers, clipping and loss scaling call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from cases import FLOATS, Case, rand

Tensors = list[torch.Tensor]
SHAPES = ((3,), (2, 4), (5, 1, 2))


def on(function: Callable[[Tensors, Tensors, Tensors], Any], dtype: torch.dtype) -> Case:
    """A case over three lists of positive numbers, which it gives back with the result."""

    def case(device: str) -> Any:
        lists = [
            [rand(device, *shape).abs().add(0.5).to(dtype) for shape in SHAPES] for _ in range(3)
        ]
        return function(*lists), lists

    return case


def binary(name: str, numbers: Sequence[float]) -> dict[str, Any]:
    """``torch._foreach_NAME`` with a list, a number and numbers, and in place."""
    new, old = getattr(torch, f"_foreach_{name}"), getattr(torch, f"_foreach_{name}_")
    return {
        f"{name}_list": lambda a, b, c: new(a, b),
        f"{name}_number": lambda a, b, c: new(a, numbers[0]),
        f"{name}_numbers": lambda a, b, c: new(a, numbers),
        f"{name}_list_in_place": lambda a, b, c: old(a, b),
        f"{name}_number_in_place": lambda a, b, c: old(a, numbers[0]),
        f"{name}_numbers_in_place": lambda a, b, c: old(a, numbers),
    }


FUNCTIONS: dict[str, Any] = {
    **{
        key: function
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max")
        for key, function in binary(name, (1.25, 0.5, 2.0)).items()
    },
    **{
        f"{name}{suffix}": (
            lambda a, b, c, name=name, suffix=suffix: getattr(torch, f"_foreach_{name}{suffix}")(a)
        )
        for name in ("abs", "exp", "neg", "reciprocal", "sqrt")
        for suffix in ("", "_")
    },
    "zero": lambda a, b, c: torch._foreach_zero_(a),
    "copy": lambda a, b, c: torch._foreach_copy_(a, b),
    "norm": lambda a, b, c: torch._foreach_norm(a),
    "norm_1": lambda a, b, c: torch._foreach_norm(a, 1),
    "add_list_alpha": lambda a, b, c: torch._foreach_add(a, b, alpha=2),
    "sub_list_alpha": lambda a, b, c: torch._foreach_sub(a, b, alpha=2),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.5),
    "addcmul_in_place": lambda a, b, c: torch._foreach_addcmul_(a, b, c, 0.5),
    "addcmul_numbers": lambda a, b, c: torch._foreach_addcmul(a, b, c, [0.5, 1.0, 2.0]),
    "addcmul_tensor": lambda a, b, c: torch._foreach_addcmul(a, b, c, torch.tensor([0.5, 1, 2])),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv(a, b, c, 0.5),
    "addcdiv_in_place": lambda a, b, c: torch._foreach_addcdiv_(a, b, c, 0.5),
    "addcdiv_numbers": lambda a, b, c: torch._foreach_addcdiv(a, b, c, [0.5, 1.0, 2.0]),
    "addcdiv_tensor": lambda a, b, c: torch._foreach_addcdiv(a, b, c, torch.tensor([0.5, 1, 2])),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.3),
    "lerp_list": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "pow": lambda a, b, c: torch._foreach_pow(a, 3.0),
    "pow_in_place": lambda a, b, c: torch._foreach_pow_(a, 2.0),
    "pow_number_first": lambda a, b, c: torch._foreach_pow(2.0, a),
}


def unscale(device: str) -> Any:
    """Loss scaling: gradients divided, and whether one of them is not finite."""
    results = []
    for bad in (None, float("inf"), float("nan")):
        gradients = [rand(device, *shape) for shape in SHAPES]
        if bad is not None:
            gradients[1][0, 1] = bad
        found = torch.zeros(1, device=device)
        inverse = torch.full((1,), 0.25, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        results.append((found, [g.nan_to_num(0, 0, 0) for g in gradients]))
    return results


def clip(device: str) -> Any:
    """torch's own clipping over lists."""
    parameters = [torch.nn.Parameter(rand(device, *shape)) for shape in SHAPES]
    for parameter in parameters:
        parameter.grad = rand(device, *parameter.shape)
    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=True)
    return norm, [p.grad for p in parameters]


def adam(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Case:
    """Three steps of an optimizer."""

    def case(device: str) -> Any:
        parameters = [torch.nn.Parameter(rand(device, *shape)) for shape in SHAPES]
        slow = {"fused": False, "foreach": False}
        settings = {**options, **slow} if device == "cpu" else options
        optimizer = kind(parameters, lr=0.1, weight_decay=0.1, **settings)  # type: ignore[call-arg]
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = rand(device, *parameter.shape)
            optimizer.step()
        return [p.detach() for p in parameters]

    return case


OPTIMIZERS = {
    "adamw_fused": adam(torch.optim.AdamW, {"fused": True}),
    "adamw_fused_amsgrad": adam(torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    "adamw_fused_maximize": adam(torch.optim.AdamW, {"fused": True, "maximize": True}),
    "adamw_foreach": adam(torch.optim.AdamW, {"foreach": True}),
    "adam_foreach": adam(torch.optim.Adam, {"foreach": True}),
}
CASES: dict[str, Case] = {
    **{f"lists-{name}": on(function, torch.float32) for name, function in FUNCTIONS.items()},
    **{
        f"lists-{name}-{str(dtype)[6:]}": on(FUNCTIONS[name], dtype)
        for name in ("add_list", "mul_number", "sqrt", "addcdiv")
        for dtype in FLOATS[1:]
    },
    **{f"optimizer-{name}": case for name, case in OPTIMIZERS.items()},
    "lists-unscale": unscale,
    "lists-clip": clip,
}
