"""flash-attn's rotation, on the active backend's rotary kernel.

Legend: b batch, s sequence, t tokens of packed sequences, n heads, d head size, r rotated size.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels import ROTARY
from accel_bridge.kernels.active import kernel


def apply_rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> torch.Tensor:
    """``x`` with its first r dimensions rotated.

    :param x: [b, s, n, d], or [t, n, d] with ``cu_seqlens``.
    :param cos: [positions, r / 2]; sin likewise.
    :param seqlen_offsets: position of the first token: a number, or int [b].
    :param cu_seqlens: int [sequences + 1], cumulative lengths with the leading 0.
    :param inplace: write the result to ``x`` too.
    :param conjugate: rotate back.
    """
    if cu_seqlens is None:
        place = torch.arange(x.shape[1], device=x.device)
        if isinstance(seqlen_offsets, torch.Tensor):
            place = place + seqlen_offsets.to(x.device)[:, None]  # [b, s]
        else:
            place = (place + seqlen_offsets)[None]
    else:
        row = torch.arange(x.shape[0], device=x.device)
        sequence = torch.searchsorted(cu_seqlens[1:].contiguous(), row, right=True)
        place = row - cu_seqlens.index_select(0, sequence)
        if isinstance(seqlen_offsets, torch.Tensor):
            place = place + seqlen_offsets.to(x.device)[sequence]
        else:
            place = place + seqlen_offsets
        place = place[:, None]  # [t, 1]
    wide = (_pairs(angles, place, interleaved) for angles in (cos, -sin if conjugate else sin))
    tokens = x if cu_seqlens is None else x.unsqueeze(1)
    rotated = kernel(ROTARY)(tokens, *wide, interleaved=interleaved)
    rotated = rotated if cu_seqlens is None else rotated.squeeze(1)
    return x.copy_(rotated) if inplace else rotated


def _pairs(angles: torch.Tensor, place: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[.., 1, r] of [positions, r / 2]."""
    found = angles[place][:, :, None]
    return found.repeat_interleave(2, dim=-1) if interleaved else torch.cat((found, found), -1)
