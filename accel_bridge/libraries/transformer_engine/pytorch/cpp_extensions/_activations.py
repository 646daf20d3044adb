"""Activations and their derivatives, quantized if a quantizer is given.

A gated one (``geglu``) multiplies the activation of the first half of the last dimension with the
second half. Derivatives come from autograd, so they are those of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import GEGLU, SWIGLU, active

Function = Callable[[torch.Tensor], torch.Tensor]


def _wide(function: Function) -> Function:
    """Computed in float32, rounded once."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        return function(x.float()).to(x.dtype) if x.dtype != torch.float64 else function(x)

    return apply


def _gated(function: Function) -> Function:
    def apply(x: torch.Tensor) -> torch.Tensor:
        first, gate = x.chunk(2, -1)
        return function(first) * gate

    return _wide(apply)


def _quick_gelu(x: torch.Tensor, alpha: float = 1.702) -> torch.Tensor:
    return x * torch.sigmoid(alpha * x)


def _clamped(x: torch.Tensor, limit: float, alpha: float) -> torch.Tensor:
    first, gate = x.chunk(2, -1)
    return _quick_gelu(first.clamp(max=limit), alpha) * (gate.clamp(-limit, limit) + 1)


_PLAIN: Final[dict[str, Function]] = {
    "gelu": partial(functional.gelu, approximate="tanh"),
    "qgelu": _quick_gelu,
    "relu": functional.relu,
    "srelu": lambda x: functional.relu(x).square(),
    "silu": functional.silu,
}
_FUNCTIONS: Final[dict[str, Function]] = {
    **{name: _wide(function) for name, function in _PLAIN.items()},
    "glu": _gated(torch.sigmoid),
    "qgeglu": _gated(_PLAIN["qgelu"]),
    "reglu": _gated(_PLAIN["relu"]),
    "sreglu": _gated(_PLAIN["srelu"]),
    "geglu": lambda x: active.kernel(GEGLU)(x),
    "swiglu": lambda x: active.kernel(SWIGLU)(x),
}


def _apply(function: Function, input: torch.Tensor, quantizer: Any) -> Any:
    with torch.no_grad():
        output = function(input)
    return output if quantizer is None else quantizer(output)


def _derivative(function: Function, grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = input.detach().requires_grad_()
        output = function(x)
    return torch.autograd.grad(output, x, grad.view(output.shape).to(output.dtype))[0]


def _backward(
    function: Function, grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any
) -> Any:
    gradient = _derivative(function, grad, fwd_input)
    return gradient if quantizer is None else quantizer(gradient)


def _backward_with_bias(
    function: Function, grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any
) -> tuple[torch.Tensor, Any]:
    gradient = _derivative(function, grad, fwd_input)
    total = gradient.reshape(-1, gradient.shape[-1]).sum(0)
    return total, gradient if quantizer is None else quantizer(gradient)


def clamped_swiglu(
    input: torch.Tensor, quantizer: Any, limit: float = 7.0, alpha: float = 1.702
) -> Any:
    """``quick_gelu(min(first, limit)) * (clamp(gate, -limit, limit) + 1)``."""
    return _apply(_wide(partial(_clamped, limit=limit, alpha=alpha)), input, quantizer)


def clamped_dswiglu(
    grad: torch.Tensor,
    fwd_input: torch.Tensor,
    quantizer: Any,
    limit: float = 7.0,
    alpha: float = 1.702,
) -> Any:
    """The derivative of :func:`clamped_swiglu`."""
    function = _wide(partial(_clamped, limit=limit, alpha=alpha))
    return _backward(function, grad, fwd_input, quantizer)


def __getattr__(name: str) -> Any:
    """``NAME(input, quantizer)``, ``dNAME(grad, fwd_input, quantizer)`` and ``dbias_dNAME``."""
    forms: tuple[tuple[str, Callable[..., Any]], ...] = (
        ("dbias_d", _backward_with_bias),
        ("d", _backward),
        ("", _apply),
    )
    for prefix, form in forms:
        function = _FUNCTIONS.get(name.removeprefix(prefix))
        if function is not None and name.startswith(prefix):
            return partial(form, function)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
