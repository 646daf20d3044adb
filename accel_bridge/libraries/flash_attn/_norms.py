"""flash-attn's norms: dropout, residual and norm in one call, on the norms' contracts.

Legend: ... any leading dimensions (rows), h hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import LAYER_NORM, RMS_NORM
from accel_bridge.kernels.active import kernel

Tensor = torch.Tensor


def layer_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    is_rms_norm: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """Norm of ``dropout(x * rowscale) + dropout(x1) + residual``, added up in float32.

    :param x: [..., h]; x1 and residual likewise.
    :param weight: [h], as the bias; ``weight1`` and ``bias1`` make a second output.
    :param rowscale: [...]; not together with ``x1``.
    :param prenorm: also return the sum, in the residual's dtype, float32 with
        ``residual_in_fp32`` where there is none, otherwise x's.
    :param zero_centered_weight: one is added to the weights.
    :param return_dropout_mask: also return both masks, bool [..., h] or None, at the end.
    :param out: where to write the output; ``residual_out`` the sum. Without gradients.
    :returns: [..., h] in ``out_dtype`` or x's, or a tuple of that and what is asked for.
    """
    assert x1 is None or rowscale is None, "rowscale is not supported with parallel LayerNorm"
    total, masks = x, []
    if rowscale is not None:
        total = total.float() * rowscale[..., None]
    for number, one in enumerate((total, x1)):
        keep = None
        if one is not None and dropout_p:
            keep = torch.rand(one.shape, device=one.device) >= dropout_p
            one = one.float().masked_fill(~keep, 0.0) / (1.0 - dropout_p)
        masks.append(keep)
        if one is not None:
            total = total.float() + one if number else one
    if residual is not None:
        total = total.float() + residual
    dtype = torch.float32 if residual_in_fp32 else x.dtype
    kept = total.to(residual.dtype if residual is not None else dtype)
    found = []
    for gamma, beta in ((weight, bias), (weight1, bias1)):
        if gamma is not None:
            gamma = gamma + 1.0 if zero_centered_weight else gamma
            found.append(_norm(total, gamma, beta, eps, is_rms_norm).to(out_dtype or x.dtype))
    if out is not None:
        found[0] = out.copy_(found[0])
    if prenorm:
        found.append(kept if residual_out is None else residual_out.copy_(kept))
    elif residual_out is not None:
        residual_out.copy_(kept)
    if return_dropout_mask:
        return (*found, *masks)
    return found[0] if len(found) == 1 else tuple(found)


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, rms: bool) -> Tensor:
    """The norm of x [..., h]; in float32 where the dtypes differ."""
    if weight.dtype != x.dtype:
        x, weight = x.float(), weight.float()
    bias = None if bias is None else bias.to(weight.dtype)
    if not rms:
        return kernel(LAYER_NORM)(x, weight, bias, eps=eps)
    normal = kernel(RMS_NORM)(x, weight, eps=eps)
    return normal if bias is None else normal + bias


def rms_norm_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    x1: Tensor | None = None,
    weight1: Tensor | None = None,
    bias1: Tensor | None = None,
    eps: float = 1e-6,
    dropout_p: float = 0.0,
    rowscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    zero_centered_weight: bool = False,
    return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> Any:
    """:func:`layer_norm_fn` without the mean."""
    return layer_norm_fn(
        x,
        weight,
        bias,
        residual,
        x1,
        weight1,
        bias1,
        eps,
        dropout_p,
        rowscale,
        prenorm,
        residual_in_fp32,
        zero_centered_weight,
        True,
        return_dropout_mask,
        out_dtype,
        out,
        residual_out,
    )


def layer_norm_linear_fn(
    x: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor | None,
    linear_weight: Tensor,
    linear_bias: Tensor | None,
    residual: Tensor | None = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    is_rms_norm: bool = False,
) -> Any:
    """A GEMM of the norm of ``x + residual``, [..., out]; with ``prenorm`` also the sum."""
    normal, kept = layer_norm_fn(
        x,
        norm_weight,
        norm_bias,
        residual,
        eps=eps,
        prenorm=True,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
    )
    gemm = functional.linear(normal.to(linear_weight.dtype), linear_weight, linear_bias)
    return (gemm, kept) if prenorm else gemm


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension, with dropout and a residual before it.

    :param zero_centered_weight: one is added to the weight.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        dropout_p: float = 0.0,
        zero_centered_weight: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.zero_centered_weight = zero_centered_weight
        self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, or 0 where one is added to it."""
        torch.nn.init.constant_(self.weight, 0.0 if self.zero_centered_weight else 1.0)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Any:
        """As :func:`rms_norm_fn`."""
        return rms_norm_fn(
            x,
            self.weight,
            None,
            residual,
            eps=self.eps,
            dropout_p=self.drop.p if self.drop is not None and self.training else 0.0,
            prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
            zero_centered_weight=self.zero_centered_weight,
        )
