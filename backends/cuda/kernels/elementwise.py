"""The Triton kernels: rotary, gated units, bias-dropout-add, the loss, the embedding.

Each wrapper imports its Triton module when it is first called.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
import torch.distributed as dist
from torch.nn import functional

from accel_bridge.backends.cuda.kernels._choice import LARGE, not_for_triton
from accel_bridge.kernels import (
    BIAS_DROPOUT_ADD,
    BIAS_GELU,
    CROSS_ENTROPY,
    EMBEDDING_GRADIENT,
    GEGLU,
    ROTARY,
    SWIGLU,
)


def rotary(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """The contract ``rotary``."""
    from accel_bridge.backends.cuda.fused import rotary as fused

    return fused.rotary(input, cos, sin, interleaved=interleaved)


def _rotary_supports(
    input: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    interleaved: bool = False,
) -> str | None:
    if input.dim() != 4 or cos.dim() != 4 or cos.shape != sin.shape:
        return f"angles of shape {list(cos.shape)} for an input of {input.dim()} dimensions"
    if cos.shape[2] != 1 or any(
        size not in (1, whole) for size, whole in zip(cos.shape[:2], input.shape, strict=False)
    ):
        return f"angles of shape {list(cos.shape)} differ between heads"
    if cos.shape[-1] % 2 or cos.shape[-1] > input.shape[-1]:
        return None if input.dtype == torch.float64 else "a rotated size that does not fit"
    if cos.requires_grad or sin.requires_grad:
        return "angles that are learned"
    return not_for_triton(input, cos, sin)


def swiglu(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The contract ``swiglu``."""
    from accel_bridge.backends.cuda.fused import gated

    return gated.swiglu(input, bias)


def geglu(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: Literal["none", "tanh"] = "tanh",
) -> torch.Tensor:
    """The contract ``geglu``."""
    from accel_bridge.backends.cuda.fused import gated

    return gated.geglu(input, bias, approximate=approximate)


def _gated_supports(
    input: torch.Tensor, bias: torch.Tensor | None = None, **options: object
) -> str | None:
    return not_for_triton(input, bias)


def bias_gelu(input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The contract ``bias_gelu``; torch's operators serve small inputs, for a cheaper launch."""
    if input.numel() < LARGE:
        return functional.gelu(input + bias, approximate="tanh")
    from accel_bridge.backends.cuda.fused import gelu

    return gelu.bias_gelu(input, bias)


def _bias_gelu_supports(input: torch.Tensor, bias: torch.Tensor) -> str | None:
    if bias.dim() != 1:
        return f"a bias of shape {list(bias.shape)}"
    return not_for_triton(input, bias)


def bias_dropout_add(
    input: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    dropout: float,
    training: bool,
) -> torch.Tensor:
    """The contract ``bias_dropout_add``; torch's operators serve small inputs."""
    if input.numel() < LARGE:
        plain = BIAS_DROPOUT_ADD.reference
        return plain(input, bias, residual, dropout=dropout, training=training)
    from accel_bridge.backends.cuda.fused import bias_dropout_add as fused

    return fused.bias_dropout_add(input, bias, residual, dropout=dropout, training=training)


def _bias_dropout_add_supports(
    input: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    dropout: float,
    training: bool,
) -> str | None:
    if bias is not None and bias.dim() != 1:
        return f"a bias of shape {list(bias.shape)}"
    if input.shape != residual.shape:
        return f"an input of {list(input.shape)} with a residual of {list(residual.shape)}"
    if dropout >= 1.0:
        return "a dropout probability of 1"
    if training and dropout > 0.0 and input.is_cuda and torch.cuda.is_current_stream_capturing():
        return "inside a CUDA graph, where only torch's own dropout draws anew in each replay"
    return not_for_triton(input, bias, residual)


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The contract ``cross_entropy``; the gradient takes the place of the logits."""
    from accel_bridge.backends.cuda.fused import cross_entropy as fused

    return fused.cross_entropy(logits, target, group=group, label_smoothing=label_smoothing)


def _cross_entropy_supports(
    logits: torch.Tensor,
    target: torch.Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    label_smoothing: float = 0.0,
) -> str | None:
    return not_for_triton(logits)


def embedding_gradient(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> None:
    """The contract ``embedding_gradient``: only rows that were used are touched."""
    from accel_bridge.backends.cuda.fused import embedding as fused

    fused.embedding_gradient(indices, grad_output, main_grad)


def _embedding_gradient_supports(
    indices: torch.Tensor, grad_output: torch.Tensor, main_grad: torch.Tensor
) -> str | None:
    if not main_grad.is_contiguous():
        return "a main_grad that is not contiguous"
    return not_for_triton(grad_output, main_grad)


_SOURCE: Final = "accel_bridge, in Triton"
KERNELS: Final = (
    ROTARY.kernel(rotary, "one pass; Megatron's own is six", _rotary_supports, _SOURCE),
    SWIGLU.kernel(swiglu, "one pass each way", _gated_supports, _SOURCE),
    GEGLU.kernel(geglu, "one pass each way", _gated_supports, _SOURCE),
    BIAS_GELU.kernel(bias_gelu, "one pass each way", _bias_gelu_supports, _SOURCE),
    BIAS_DROPOUT_ADD.kernel(
        bias_dropout_add,
        "one pass each way; the mask is regenerated instead of stored",
        _bias_dropout_add_supports,
        _SOURCE,
    ),
    CROSS_ENTROPY.kernel(
        cross_entropy,
        "two passes over the logits and no copy of them in float32",
        _cross_entropy_supports,
        _SOURCE,
    ),
    EMBEDDING_GRADIENT.kernel(
        embedding_gradient,
        "adds only to the rows that were used, in a fixed order",
        _embedding_gradient_supports,
        _SOURCE,
    ),
)
