"""The activations of an MLP by name.

Legend: f feed-forward size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import GEGLU, SWIGLU
from accel_bridge.kernels.active import kernel

Activation = Callable[[torch.Tensor], torch.Tensor]


class _Once(torch.autograd.Function):
    """A formula of several steps in float32; only its input is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, formula: Activation) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.formula = formula
        return formula(_exact(x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            point = _exact(x).detach().requires_grad_()
            value = ctx.formula(point)
        (gradient,) = torch.autograd.grad(value, point, gradients[0].to(value.dtype))
        return gradient.to(x.dtype), None


def _exact(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _in_float32(formula: Activation) -> Activation:
    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Once.apply(x, formula)  # type: ignore[no-untyped-call]
        return result

    return apply


def _qgelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def _srelu(x: torch.Tensor) -> torch.Tensor:
    return functional.relu(x).square()


def _gated(gate: Activation) -> Activation:
    """``gate(a) * b`` of the halves [.., f] of the last dimension."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return gate(a) * b

    return _in_float32(apply)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def _swiglu(x: torch.Tensor) -> torch.Tensor:
    return kernel(SWIGLU)(x)


def _geglu(x: torch.Tensor) -> torch.Tensor:
    return kernel(GEGLU)(x, approximate="tanh")


def _clamped_swiglu(limit: float = 7.0, alpha: float = 1.702) -> Activation:
    """GPT-OSS's: the gate is cut off above, the other half on both sides and raised by one."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        a = a.clamp(max=limit)
        return a * torch.sigmoid(alpha * a) * (b.clamp(-limit, limit) + 1)

    return _in_float32(apply)


_PLAIN: Final[Mapping[str, Activation]] = {
    "gelu": _gelu,
    "geglu": _geglu,
    "glu": _gated(torch.sigmoid),
    "qgelu": _in_float32(_qgelu),
    "qgeglu": _gated(_qgelu),
    "relu": functional.relu,
    "reglu": _gated(functional.relu),
    "silu": functional.silu,
    "srelu": _in_float32(_srelu),
    "sreglu": _gated(_srelu),
    "swiglu": _swiglu,
}
_CLAMPED: Final = "clamped_swiglu"


def is_gated(name: str) -> bool:
    """Whether the activation takes twice as many values as it returns."""
    return name.endswith("glu")


def activation(name: str, parameters: Mapping[str, Any] | None) -> Activation:
    """The activation ``name``: [.., f] (or [.., 2 f] if gated) -> [.., f].

    :param parameters: of ``clamped_swiglu``: ``limit`` and ``alpha``.
    :raises NotImplementedError: an unknown name.
    """
    if name == _CLAMPED:
        return _clamped_swiglu(**(parameters or {}))
    if name not in _PLAIN:
        raise NotImplementedError(f"Activation type {name} is not supported!")
    return _PLAIN[name]
