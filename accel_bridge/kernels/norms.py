"""Contracts ``rms_norm`` and ``layer_norm``, over the last dimension.

Legend: ... any leading dimensions, h hidden size.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract, compute_dtype


def gamma(weight: torch.Tensor, zero_centered: bool, dtype: torch.dtype) -> torch.Tensor:
    """The factor in ``dtype``: ``weight``, or ``1 + weight`` added in ``dtype``."""
    return weight.to(dtype) + 1 if zero_centered else weight.to(dtype)


def rms_norm_reference(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """``input / sqrt(mean(input^2) + eps) * gamma``, all in float32, rounded once at the end.

    :param input: [..., h], float16, bfloat16, float32 or float64.
    :param weight: [h], any float dtype; gamma is ``weight``, or ``1 + weight`` when
        ``zero_centered_gamma``.
    :param eps: added to the mean square; a row of zeros is divided by its root.
    :returns: [..., h] in the input's dtype.
    """
    dtype = compute_dtype(input)
    x = input.to(dtype)
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (normal * gamma(weight, zero_centered_gamma, dtype)).to(input.dtype)


def layer_norm_reference(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """``(input - mean) / sqrt(var + eps) * gamma + bias``, all in float32, rounded once at the end.

    :param input: [..., h], float16, bfloat16, float32 or float64.
    :param weight: [h], any float dtype; gamma is ``weight``, or ``1 + weight`` when
        ``zero_centered_gamma``.
    :param bias: [h] or None.
    :param eps: added to the variance.
    :returns: [..., h] in the input's dtype. The variance is the biased one.
    """
    dtype = compute_dtype(input)
    x = input.to(dtype)
    centered = x - x.mean(-1, keepdim=True)
    normal = centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    output = normal * gamma(weight, zero_centered_gamma, dtype)
    if bias is not None:
        output = output + bias.to(dtype)
    return output.to(input.dtype)


RMS_NORM = Contract(
    name="rms_norm",
    reference=rms_norm_reference,
    formula="x / sqrt(mean(x^2) + eps) * gamma",
    source="Zhang and Sennrich 2019, arXiv:1910.07467; semantics of torch.nn.RMSNorm",
)
LAYER_NORM = Contract(
    name="layer_norm",
    reference=layer_norm_reference,
    formula="(x - mean(x)) / sqrt(var(x) + eps) * gamma + beta",
    source="Ba et al. 2016, arXiv:1607.06450; semantics of Megatron's FusedLayerNorm",
)
