"""flash-attn's RMSNorm, alone and behind dropout and a residual."""

from __future__ import annotations

from functools import partial

import torch

from . import layer_norm
from .triton.layer_norm import RMSNorm as _RMSNorm
from .triton.layer_norm import rms_norm_fn

Tensor = torch.Tensor

dropout_add_rms_norm = partial(layer_norm.dropout_add_layer_norm, is_rms_norm=True)
dropout_add_rms_norm_parallel_residual = partial(
    layer_norm.dropout_add_layer_norm_parallel_residual, is_rms_norm=True
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


class DropoutAddRMSNorm(layer_norm.DropoutAddLayerNorm):
    """:func:`dropout_add_rms_norm` with its weight."""

    is_rms_norm = True
