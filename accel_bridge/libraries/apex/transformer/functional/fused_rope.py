"""Rotary position embedding of the first dimensions of each head.

Legend: s sequence, b batch, n heads, d head size, r rotated size, t tokens of all sequences.
"""

from __future__ import annotations

from typing import Final

import torch

from accel_bridge.kernels import ROTARY, TensorCache
from accel_bridge.kernels.active import kernel

#: Cosines and sines of the angles that every layer of a step uses.
_TURNS: Final[TensorCache[tuple[torch.Tensor, torch.Tensor]]] = TensorCache()


def fused_apply_rotary_pos_emb(
    t: torch.Tensor, freqs: torch.Tensor, transpose_output_memory: bool = False
) -> torch.Tensor:
    """Turn each pair (i, i + r/2) by its angle.

    :param t: [s, b, n, d], any float dtype.
    :param freqs: [at least s, 1, 1, r], float32 angles.
    :param transpose_output_memory: lay the result out as [b, s, n, d].
    :returns: [s, b, n, d] in the dtype of ``t``.
    """
    cos, sin = _TURNS.get((freqs,), None, lambda: (freqs.cos(), freqs.sin()))
    turned = kernel(ROTARY)(t, cos[: t.shape[0]], sin[: t.shape[0]])
    if not transpose_output_memory:
        return turned
    return turned.transpose(0, 1).contiguous().transpose(0, 1)


def fused_apply_rotary_pos_emb_thd(
    t: torch.Tensor, cu_seqlens: torch.Tensor, freqs: torch.Tensor
) -> torch.Tensor:
    """The same for sequences one after another, each of which starts at position 0.

    :param t: [t, n, d].
    :param cu_seqlens: [sequences + 1], int32: where each begins.
    :param freqs: [at least the longest sequence, 1, 1, r], float32 angles.
    :returns: [t, n, d] in the dtype of ``t``.
    """

    def turns() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.arange(t.shape[0], device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        sequence = torch.searchsorted(cu_seqlens, rows, right=True) - 1
        angles = freqs[:, 0].index_select(0, rows - cu_seqlens[sequence])
        return angles.cos(), angles.sin()

    cos, sin = _TURNS.get((freqs, cu_seqlens), t.shape[0], turns)
    return kernel(ROTARY)(t, cos, sin)
