"""Contracts of LayerNorm and RMSNorm over the last dimension.

``rms_norm`` and ``layer_norm`` are differentiable; ``norm_forward`` and ``norm_backward`` are the
two passes apart, with the statistics that a caller keeps between them.

Legend: ... any leading dimensions, h hidden size, r rows (the product of the leading dimensions).
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


@torch.no_grad()
def norm_forward_reference(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
    centered: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """``layer_norm``, or ``rms_norm`` when not ``centered``, and its statistics.

    :param input: [..., h], float16, bfloat16, float32 or float64.
    :param weight: [h], any float dtype.
    :param bias: [h] or None; None when not ``centered``.
    :param eps: added to the variance or to the mean square.
    :param zero_centered_gamma: gamma is ``1 + weight``.
    :param centered: take off the mean.
    :returns: output [..., h] in the input's dtype; the mean [r] or None, and 1 / deviation [r] (of
        the mean square when not ``centered``), both in float32.
    """
    dtype = compute_dtype(input)
    x = input.to(dtype).reshape(-1, input.shape[-1])
    mean = None
    if centered:
        mean = x.mean(-1)
        x = x - mean[:, None]
    rsigma = torch.rsqrt(x.square().mean(-1) + eps)
    output = x * rsigma[:, None] * gamma(weight, zero_centered_gamma, dtype)
    if bias is not None:
        output = output + bias.to(dtype)
    return output.to(input.dtype).view(input.shape), mean, rsigma


@torch.no_grad()
def norm_backward_reference(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor | None,
    rsigma: torch.Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradients of ``norm_forward`` from its statistics, in float32, rounded once.

    :param grad_output: [..., h], any float dtype.
    :param input: [..., h], as in the forward pass.
    :param weight: [h].
    :param mean: [r], or None of a norm that is not centered.
    :param rsigma: [r].
    :param zero_centered_gamma: gamma is ``1 + weight``.
    :returns: gradients of the input [..., h] in its dtype, of the weight [h] in its dtype, and of
        the bias [h] in the weight's dtype; None for the last without a mean.
    """
    dtype = compute_dtype(input)
    x = input.to(dtype).reshape(-1, input.shape[-1])
    gradient = grad_output.to(dtype).reshape(x.shape)
    scaled = gradient * gamma(weight, zero_centered_gamma, dtype)
    normal = (x if mean is None else x - mean[:, None]) * rsigma[:, None]
    inner = scaled - normal * (scaled * normal).mean(-1, keepdim=True)
    if mean is not None:
        inner = inner - scaled.mean(-1, keepdim=True)
    grad_input = (inner * rsigma[:, None]).to(input.dtype).view(input.shape)
    grad_weight = (gradient * normal).sum(0).to(weight.dtype)
    return grad_input, grad_weight, None if mean is None else gradient.sum(0).to(weight.dtype)


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
NORM_FORWARD = Contract(
    name="norm_forward",
    reference=norm_forward_reference,
    formula="y = (x - mean) / sqrt(var + eps) * gamma + beta, with mean and 1 / sqrt(var + eps)",
    source="semantics of Transformer Engine's layernorm_fwd and rmsnorm_fwd",
)
NORM_BACKWARD = Contract(
    name="norm_backward",
    reference=norm_backward_reference,
    formula="dx = (g - n * mean(g * n) - mean(g)) / sigma, g = dy * gamma, n = (x - mean) / sigma",
    source="semantics of Transformer Engine's layernorm_bwd and rmsnorm_bwd",
)
