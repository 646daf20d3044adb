"""Gated activations of the MLP, and bias, dropout and residual after each sub-layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch, unless_faster
from accel_bridge.patching import Kind, Patch, PatchContext


def _make_swiglu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import SWIGLU

    upstream = context.original
    kernel = context.host.kernel(SWIGLU)

    @functools.wraps(upstream)
    def bias_swiglu_impl(input: Any, bias: Any, *args: Any, **kwargs: Any) -> Any:
        """silu(a) * b of the halves of input [.., 2 f] (+ bias [2 f]): [.., f]."""
        # What follows asks for something else: fp8 storage, offloading, clamping.
        if any(args) or any(kwargs.values()):
            return upstream(input, bias, *args, **kwargs)
        return kernel(input, bias)

    return bias_swiglu_impl


def _make_geglu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import GEGLU

    kernel = context.host.kernel(GEGLU)

    def bias_geglu_impl(input: Any, bias: Any) -> Any:
        """gelu(a) * b of the halves of input [.., 2 f] (+ bias [2 f]): [.., f]."""
        return kernel(input, bias, approximate="tanh")

    return bias_geglu_impl


def _make_gelu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import BIAS_GELU

    kernel = context.host.kernel(BIAS_GELU)

    def bias_gelu_impl(*args: Any, **kwargs: Any) -> Any:
        """gelu(input + bias) of input [.., f] and bias [f]; upstream's takes no names."""
        return kernel(*args, **kwargs)

    return bias_gelu_impl


def _make_bias_dropout_add(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import BIAS_DROPOUT_ADD

    kernel = context.host.kernel(BIAS_DROPOUT_ADD)

    def bias_dropout_add_fused_train(x_with_bias: Any, residual: Any, prob: float) -> Any:
        """residual + dropout(x + bias) for x and residual [s, b, h]."""
        x, bias = x_with_bias
        # Megatron's warm-up passes a bias [h] that is expanded to [s, b, h].
        while bias is not None and bias.dim() > 1 and 1 in (bias.shape[0], bias.stride(0) + 1):
            bias = bias[0]
        return kernel(x, bias, residual, dropout=prob, training=True)

    return bias_dropout_add_fused_train


def _patch(
    kernel: str,
    target: str,
    make: Callable[[PatchContext], Any],
    *,
    kind: Kind = Kind.REPLACE,
    why: str = "",
    **options: Any,
) -> Patch:
    """:param why: what is to be said in addition."""
    return megatron_patch(
        id=kernel.replace("_", "-"),
        target=f"megatron.core.fusions.{target}",
        kind=kind,
        make=make,
        why=f"it is compiled when training begins, and again for each new shape{why}",
        removed_when="the backend's kernel is no faster than what torch.compile makes",
        loses="some seconds at the start, and the host's time per call",
        skip_when=unless_faster(kernel),
        kernels=(kernel,),
        **options,
    )


PATCHES = (
    _patch(
        "swiglu",
        "fused_bias_swiglu:bias_swiglu_impl",
        _make_swiglu,
        kind=Kind.WRAP,
        uses=("input", "bias"),
    ),
    _patch("geglu", "fused_bias_geglu:bias_geglu_impl", _make_geglu),
    _patch(
        "bias_gelu",
        "fused_bias_gelu:bias_gelu_impl",
        _make_gelu,
        parameters=("args", "kwargs"),
    ),
    _patch(
        "bias_dropout_add",
        "fused_bias_dropout:bias_dropout_add_fused_train",
        _make_bias_dropout_add,
        why="; it keeps the dropout mask, which the kernel regenerates",
    ),
)
