"""Masks, ALiBi biases and sequence lengths in Transformer Engine's forms.

Legend: b batch, sq and sk lengths of queries and keys. In every mask True = hidden.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

#: Lengths of full batches by (batch, length, device).
_FULL: Final[dict[tuple[int, int, torch.device], torch.Tensor]] = {}

Masks = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def get_full_cu_seqlens(batch_size: int, max_seqlen: int, device: torch.device) -> torch.Tensor:
    """int32 [b + 1]: cumulative lengths of sequences that are all ``max_seqlen`` long."""
    key = (batch_size, max_seqlen, device)
    if key not in _FULL:
        # Not range(0, end, step): a length of 0 has no step.
        steps = torch.arange(batch_size + 1, dtype=torch.int32, device=device)
        _FULL[key] = steps * max_seqlen
    return _FULL[key]


def get_cu_seqlens(mask: torch.Tensor) -> torch.Tensor:
    """int32 [b + 1] of a padding mask [b, 1, 1, s] whose padding is at the end."""
    lengths = mask.flatten(1).logical_not().sum(dim=1)
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def get_cu_seqlens_and_indices(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`get_cu_seqlens`, and the places of the tokens in [b * s], int64 [b * s, 1, 1].

    Behind the last token the places are b * s.
    """
    batch, length = mask.shape[0], mask.shape[-1]
    places = mask.reshape(-1).logical_not().nonzero().unsqueeze(-1)
    return get_cu_seqlens(mask), _filled(places, batch * length)


def get_indices(max_seqlen: int, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """The places in [b * max_seqlen] of tokens of these lengths, int64 [b * max_seqlen, 1, 1]."""
    lengths = cu_seqlens.diff()
    real = torch.arange(max_seqlen, device=cu_seqlens.device) < lengths[:, None]
    return _filled(real.reshape(-1).nonzero().unsqueeze(-1), lengths.numel() * max_seqlen)


def _filled(places: torch.Tensor, total: int) -> torch.Tensor:
    missing = total - places.shape[0]
    return torch.nn.functional.pad(places, (0, 0, 0, 0, 0, missing), value=total)


def get_padding_mask(
    batch_size: int,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_kv: torch.Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_kv: int | None = None,
    attention_type: str = "self",
) -> Masks:
    """Padding masks [b, 1, 1, s] of cumulative lengths: one for self-attention, else a pair."""

    def mask(cu_seqlens: torch.Tensor, longest: int) -> torch.Tensor:
        place = torch.arange(longest, device=cu_seqlens.device)
        return (place >= cu_seqlens.diff()[:batch_size, None])[:, None, None, :]

    if attention_type == "self":
        return mask(cu_seqlens_q, max_seqlen_q)
    required = "cu_seqlens_kv and max_seqlen_kv are required for cross-attention"
    assert cu_seqlens_kv is not None, required
    assert max_seqlen_kv is not None, required
    return mask(cu_seqlens_q, max_seqlen_q), mask(cu_seqlens_kv, max_seqlen_kv)


@torch.no_grad()
def get_full_mask(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    attn_mask_type: str = "no_mask",
    attention_mask: Masks | None = None,
    window_size: tuple[int, int] | None = None,
    attention_type: str = "self",
    bottom_right_alignment: bool = True,
) -> tuple[str, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Padding, causality and window as one mask [b or 1, 1 or n, sq, sk].

    Causal masks are aligned as their name says, the others as ``bottom_right_alignment``; with
    padding, the corner is that of the real tokens.

    :returns: the mask type ("arbitrary" if there is a window), the mask, and with padding the
        lengths of queries and keys, int64 [b].
    """
    windowed = window_size is not None and (window_size[0] != -1 or window_size[1] > 0)
    left, right = (-1, -1) if window_size is None else window_size
    if "causal" in attn_mask_type:
        right = 0
    lengths_q = lengths_k = None
    mask: torch.Tensor | None
    if "padding" in attn_mask_type:
        assert attention_mask is not None, "Please provide attention_mask for padding!"
        rows, columns = (
            (attention_mask, attention_mask)
            if isinstance(attention_mask, torch.Tensor)
            else attention_mask
        )
        mask = rows.flatten(1)[:, None, :, None] | columns.flatten(1)[:, None, None, :]
        lengths_q = rows.flatten(1).logical_not().sum(1)
        lengths_k = columns.flatten(1).logical_not().sum(1)
    else:
        assert not isinstance(attention_mask, tuple)
        mask = attention_mask if attn_mask_type == "arbitrary" else None
    device = torch.device("cuda") if mask is None else mask.device
    distance = (
        torch.arange(max_seqlen_kv, device=device)
        - torch.arange(max_seqlen_q, device=device)[:, None]
    )[None, None]
    aligned = bottom_right_alignment
    if "causal" in attn_mask_type:
        aligned = "bottom_right" in attn_mask_type
    if aligned and lengths_q is not None and lengths_k is not None:
        distance = distance - (lengths_k - lengths_q).view(-1, 1, 1, 1)
    elif aligned:
        distance = distance - (max_seqlen_kv - max_seqlen_q)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if right != -1:
        hidden |= distance > right
    if left != -1:
        hidden |= distance < -left
    mask = hidden if mask is None else mask | hidden
    return "arbitrary" if windowed else attn_mask_type, mask, lengths_q, lengths_k


def alibi_slopes_of(heads: int, device: torch.device) -> torch.Tensor:
    """float32 [n]: the slopes of ALiBi's paper (Press et al. 2022, arXiv:2108.12409)."""
    power = 2 ** math.floor(math.log2(heads))
    steps = torch.arange(1, 1 + power, dtype=torch.float64)
    slopes = torch.exp2(-8.0 / power * steps)
    if power < heads:
        between = torch.arange(1, 1 + 2 * (heads - power), 2, dtype=torch.float64)
        slopes = torch.cat((slopes, torch.exp2(-4.0 / power * between)))
    return slopes.to(device=device, dtype=torch.float32)


def alibi_bias(
    slopes: torch.Tensor,
    sq: int,
    sk: int,
    bottom_right: bool,
    lengths: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """float32 [b or 1, n, sq, sk]: ``-slope * |i + shift - j|``.

    :param slopes: [n] or [b, n].
    :param lengths: [b] of queries and keys, where padding moves the corner.
    """
    place = torch.arange(sq, device=slopes.device)[:, None]
    distance = (place - torch.arange(sk, device=slopes.device))[None, None]
    if bottom_right and lengths is not None:
        distance = distance + (lengths[1] - lengths[0]).view(-1, 1, 1, 1)
    elif bottom_right:
        distance = distance + (sk - sq)
    rows = slopes if slopes.dim() == 2 else slopes[None]
    return -distance.abs() * rows[:, :, None, None]


@torch.no_grad()
def get_alibi(
    _alibi_cache: dict[str, Any],
    num_heads: int,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    actual_seqlens_q: torch.Tensor | None = None,
    actual_seqlens_kv: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    bias_dtype: torch.dtype | None = None,
    bottom_right_alignment: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slopes float32 [n] or [b, n], and the bias [b or 1, n, sq, sk], kept in ``_alibi_cache``.

    :raises ValueError: slopes of more than two dimensions.
    """
    if _alibi_cache["_alibi_slopes_require_update"]:
        device = torch.device("cuda", torch.cuda.current_device())
        slopes = alibi_slopes_of(num_heads, device) if alibi_slopes is None else alibi_slopes
        _alibi_cache["_alibi_slopes"], _alibi_cache["_num_heads"] = slopes, num_heads
        _alibi_cache["_alibi_slopes_require_update"] = False
    slopes = _alibi_cache["_alibi_slopes"]
    if _alibi_cache["_alibi_bias_require_update"]:
        if slopes.dim() > 2:
            raise ValueError("ALiBi slopes cannot exceed 2 dimensions.")
        lengths = None
        if actual_seqlens_q is not None and actual_seqlens_kv is not None:
            lengths = (actual_seqlens_q, actual_seqlens_kv)
        bias = alibi_bias(slopes, max_seqlen_q, max_seqlen_kv, bottom_right_alignment, lengths)
        _alibi_cache["_alibi_bias"] = bias.to(bias_dtype or torch.float32)
        _alibi_cache["_max_seqlen_q"] = max_seqlen_q
        _alibi_cache["_max_seqlen_kv"] = max_seqlen_kv
        _alibi_cache["_bottom_right_alignment"] = bottom_right_alignment
        _alibi_cache["_alibi_bias_require_update"] = False
    return slopes, _alibi_cache["_alibi_bias"]
