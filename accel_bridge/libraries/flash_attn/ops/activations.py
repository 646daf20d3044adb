"""flash-attn's activations. GELU is the approximation by tanh."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import SWIGLU
from accel_bridge.kernels.active import kernel

Tensor = torch.Tensor

gelu_fwd = fast_gelu_impl = partial(functional.gelu, approximate="tanh")


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    """GELU of y [..., h] plus bias [h], in y's dtype."""
    return functional.gelu(y + bias, approximate="tanh").to(y.dtype)


bias_gelu_impl = bias_gelu


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x, given that of its GELU."""
    found: Tensor = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
    return found.to(x.dtype)


def bias_gelu_back(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of y [rows, h] and bias [h], given that of :func:`bias_gelu`."""
    gradient = gelu_bwd(g, y + bias)
    return gradient.to(y.dtype), gradient.sum(0, dtype=bias.dtype)


def relu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x, given that of its ReLU; at 0 the whole of it."""
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x: Tensor) -> Tensor:
    """The square of ReLU."""
    return functional.relu(x).square()


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x, given that of its squared ReLU."""
    return (2.0 * g * functional.relu(x)).to(x.dtype)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """``silu(x) * y``, rounded once."""
    return kernel(SWIGLU)(torch.cat((x, y), -1))


class SwiGLUFunction:
    """:func:`swiglu`, called as a ``torch.autograd.Function``."""

    @staticmethod
    def apply(*args: Any) -> Tensor:
        """As :func:`swiglu`."""
        return swiglu(*args)
