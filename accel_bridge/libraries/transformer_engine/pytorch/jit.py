"""Compiled functions, and functions that stay outside of compilation.

Source of the names: transformer_engine/pytorch/jit.py of Transformer Engine 2.13.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.nn import functional

from accel_bridge.kernels import BIAS_DROPOUT_ADD
from accel_bridge.kernels.active import features, kernel

P = ParamSpec("P")
R = TypeVar("R")


def lazy_compile(func: Callable[P, R]) -> Callable[P, R]:
    """``func`` compiled by torch at its first call; as it is on devices without a compiler."""
    compiled: Callable[P, R] | None = None

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal compiled
        if compiled is None:
            compiled = torch.compile(func) if features().torch_compile else func
        return compiled(*args, **kwargs)

    return wrapper


def _as_it_is(func: Callable[P, R]) -> Callable[P, R]:
    return func


_COMPILES = bool(int(os.getenv("NVTE_TORCH_COMPILE", "1")))

#: Decorator of element-wise functions; ``NVTE_TORCH_COMPILE=0`` leaves them as they are.
jit_fuser = lazy_compile if _COMPILES else _as_it_is
dropout_fuser = jit_fuser


def no_torch_dynamo(recursive: bool = True) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: ``torch.compile`` of a caller leaves this function out.

    :param recursive: leave out what the function calls as well.
    """

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        left_out: Callable[P, R] | None = None

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            # torch's own decorator imports its compiler, and takes time in every call.
            if not torch.compiler.is_dynamo_compiling():
                return function(*args, **kwargs)
            nonlocal left_out
            if left_out is None:
                left_out = torch.compiler.disable(function, recursive=recursive)
            return left_out(*args, **kwargs)

        return wrapper

    return decorator


def set_jit_fusion_options() -> None:
    """Nothing: torch 2 has no such options."""


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    """Derivative of GELU's tanh approximation."""
    inner = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
    slope = 0.5 * x * (1 - inner * inner) * (0.79788456 + 0.1070322243 * x * x)
    return slope + 0.5 * (1 + inner)


@jit_fuser
def gelu_fused_(inp: torch.Tensor) -> torch.Tensor:
    """GELU's tanh approximation."""
    return functional.gelu(inp, approximate="tanh")


@jit_fuser
def bias_gelu_fused_(inp: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU's tanh approximation of inp [..., f] + bias [f]."""
    return functional.gelu(inp + bias, approximate="tanh")


@jit_fuser
def dgelu_fused_(grad_output: torch.Tensor, inp: torch.Tensor) -> torch.Tensor:
    """Gradient of :func:`gelu_fused_`."""
    return _gelu_slope(inp) * grad_output


@jit_fuser
def bgrad_dgelu_fused_(
    grad_output: torch.Tensor, inp: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(bias's gradient, input's gradient) of :func:`bias_gelu_fused_` for inp [t, f]."""
    gradient = _gelu_slope(inp + bias) * grad_output
    return gradient.sum(dim=0), gradient


def bias_gelu_fused(inp: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """GELU of inp + bias, without automatic casts."""
    with _exact(inp):
        if bias is None or not bias.numel():
            return gelu_fused_(inp)
        return bias_gelu_fused_(inp, bias)


def bgrad_dgelu_fused(
    grad_output: torch.Tensor, inp: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Gradients of :func:`bias_gelu_fused`, without automatic casts."""
    with _exact(inp):
        if bias is None or not bias.numel():
            return None, dgelu_fused_(grad_output, inp)
        return bgrad_dgelu_fused_(grad_output, inp, bias)


@jit_fuser
def l2normalization_fwd_fused_(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(x [..., h] divided by its length over h, the inverse length [..., 1] in float32)."""
    exact = x.float()
    inverse = torch.rsqrt(exact.square().sum(dim=-1, keepdim=True) + eps)
    return (exact * inverse).to(x.dtype), inverse


@jit_fuser
def l2normalization_backward_fused_(
    grad_output: torch.Tensor, x: torch.Tensor, rsqrt_norm: torch.Tensor, eps: float
) -> torch.Tensor:
    """Gradient of :func:`l2normalization_fwd_fused_`."""
    exact, gradient = x.float(), grad_output.float()
    along = (exact * gradient).sum(dim=-1, keepdim=True)
    whole = exact.square().sum(dim=-1, keepdim=True) + eps
    return (rsqrt_norm * (gradient - exact * along / whole)).to(x.dtype)


def l2normalization_fused(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., h] divided by its length over h, without automatic casts."""
    return l2normalization_fwd_fused(x, eps)[0]


def l2normalization_fwd_fused(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """See :func:`l2normalization_fwd_fused_`; without automatic casts."""
    with _exact(x):
        return l2normalization_fwd_fused_(x, eps)


def l2normalization_backward_fused(
    grad_output: torch.Tensor, x: torch.Tensor, rsqrt_norm: torch.Tensor, eps: float
) -> torch.Tensor:
    """See :func:`l2normalization_backward_fused_`; without automatic casts."""
    with _exact(x):
        return l2normalization_backward_fused_(grad_output, x, rsqrt_norm, eps)


def _exact(x: torch.Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def bias_dropout_add(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float, training: bool
) -> torch.Tensor:
    """``residual + dropout(x + bias)``."""
    return residual + functional.dropout(x + bias, p=prob, training=training)


def get_bias_dropout_add(training: bool) -> Callable[..., torch.Tensor]:
    """:func:`bias_dropout_add` in training or not."""
    return functools.partial(bias_dropout_add, training=training)


def bias_dropout_add_fused_train(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float
) -> torch.Tensor:
    """:func:`bias_dropout_add` in training, by the backend's kernel."""
    with torch.enable_grad(), _exact(x):
        return kernel(BIAS_DROPOUT_ADD)(x, bias, residual, dropout=prob, training=True)


def bias_dropout_add_fused_inference(
    x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, prob: float
) -> torch.Tensor:
    """:func:`bias_dropout_add` outside of training, by the backend's kernel."""
    with _exact(x):
        return kernel(BIAS_DROPOUT_ADD)(x, bias, residual, dropout=prob, training=False)
