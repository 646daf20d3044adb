"""flash-attn's older norms, behind dropout and a residual, by the newer ones.

Legend: ... any leading dimensions (rows), h hidden size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ._norms import RMSNorm as _RMSNorm
from ._norms import layer_norm_fn, rms_norm_fn

Tensor = torch.Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """LayerNorm of x [..., h]."""
    found: Tensor = layer_norm_fn(x, weight, bias, eps=epsilon)
    return found


def dropout_add_layer_norm(
    x0: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    epsilon: float,
    rowscale: Tensor | None = None,
    layerscale: Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
    *,
    is_rms_norm: bool = False,
) -> Any:
    """Norm of ``dropout(x0 * rowscale * layerscale) + residual``.

    :param x0: [..., h]; the residual likewise.
    :param rowscale: [...].
    :param layerscale: [h].
    :param prenorm: also return the sum, in the residual's dtype; float32 with
        ``residual_in_fp32`` where there is none.
    :param return_dropout_mask: also return uint8 [..., h], 1 for what was kept.
    """
    scaled = x0 if layerscale is None else x0.float() * layerscale
    *found, mask, _ = layer_norm_fn(
        scaled,
        weight,
        bias,
        residual,
        eps=epsilon,
        dropout_p=dropout_p,
        rowscale=rowscale,
        prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
        return_dropout_mask=True,
        out_dtype=x0.dtype,
    )
    if prenorm and residual is None and not residual_in_fp32:
        found[1] = found[1].to(x0.dtype)
    if return_dropout_mask:
        found.append(_kept(mask, x0))
    return found[0] if len(found) == 1 else tuple(found)


def dropout_add_layer_norm_parallel_residual(
    x0: Tensor,
    x1: Tensor | None,
    residual: Tensor | None,
    weight0: Tensor,
    bias0: Tensor | None,
    weight1: Tensor | None,
    bias1: Tensor | None,
    dropout_p: float,
    epsilon: float,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    return_dropout_mask: bool = False,
    *,
    is_rms_norm: bool = False,
) -> Any:
    """Two norms of ``dropout(x0) + dropout(x1) + residual``; the second None without a weight.

    :returns: both, the sum with ``prenorm``, and both masks with ``return_dropout_mask``, as in
        :func:`dropout_add_layer_norm`.
    """
    *found, mask0, mask1 = layer_norm_fn(
        x0,
        weight0,
        bias0,
        residual,
        x1,
        weight1,
        bias1,
        epsilon,
        dropout_p,
        prenorm=prenorm,
        residual_in_fp32=residual_in_fp32,
        is_rms_norm=is_rms_norm,
        return_dropout_mask=True,
    )
    if weight1 is None:
        found.insert(1, None)
    if return_dropout_mask:
        found += [_kept(mask0, x0), _kept(mask1, x0)]
    return tuple(found)


def _kept(mask: Tensor | None, x: Tensor) -> Tensor:
    return torch.ones_like(x, dtype=torch.uint8) if mask is None else mask.to(torch.uint8)


class DropoutAddLayerNorm(torch.nn.Module):
    """:func:`dropout_add_layer_norm` with its weight and bias."""

    is_rms_norm = False
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        hidden_size: int,
        prenorm: bool = False,
        p: float = 0.0,
        eps: float = 1e-5,
        residual_in_fp32: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.prenorm = prenorm
        self.p = p
        self.eps = eps
        self.residual_in_fp32 = residual_in_fp32
        empty = torch.empty(hidden_size, device=device, dtype=dtype)
        self.weight = torch.nn.Parameter(empty)
        absent = self.is_rms_norm
        self.register_parameter("bias", None if absent else torch.nn.Parameter(empty.clone()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x0: Tensor, residual: Tensor | None = None) -> Any:
        """The norm of x0 [..., h], and with ``prenorm`` the sum."""
        return dropout_add_layer_norm(
            x0,
            residual,
            self.weight,
            self.bias,
            self.p if self.training else 0.0,
            self.eps,
            prenorm=self.prenorm,
            residual_in_fp32=self.residual_in_fp32,
            is_rms_norm=self.is_rms_norm,
        )


dropout_add_rms_norm = partial(dropout_add_layer_norm, is_rms_norm=True)
dropout_add_rms_norm_parallel_residual = partial(
    dropout_add_layer_norm_parallel_residual, is_rms_norm=True
)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of x [..., h] with weight [h]."""
    found: Tensor = rms_norm_fn(x, weight, None, eps=epsilon)
    return found


class RMSNorm(_RMSNorm):
    """RMSNorm over the last dimension, [h]."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, eps, device=device, dtype=dtype)


class DropoutAddRMSNorm(DropoutAddLayerNorm):
    """:func:`dropout_add_rms_norm` with its weight."""

    is_rms_norm = True
