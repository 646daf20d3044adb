"""flash-attn's rotary embeddings, on the active backend's rotary kernel.

Legend: b batch, s sequence, t tokens of packed sequences, n heads (nq of queries, g of keys),
d head size, r rotated size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


Offsets = int | torch.Tensor


class _InPlace(torch.autograd.Function):
    """A rotation that writes to its argument, also to a leaf, which autograd would refuse."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rotate: Callable[..., None]) -> torch.Tensor:
        ctx.rotate = rotate
        rotate(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        back = gradients[0].clone()
        ctx.rotate(back, conjugate=True)
        return back, None


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Offsets = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    """:func:`apply_rotary`, with a gradient."""
    tail = (cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved)
    if not inplace:
        return apply_rotary(x, *tail)

    def rotate(tokens: torch.Tensor, conjugate: bool = False) -> None:
        apply_rotary(tokens, *tail, inplace=True, conjugate=conjugate)

    return _in_place(x, rotate)


apply_rotary_emb_func = apply_rotary_emb


def _in_place(x: torch.Tensor, rotate: Callable[..., None]) -> torch.Tensor:
    if torch.is_grad_enabled() and x.requires_grad:
        found: torch.Tensor = _InPlace.apply(x, rotate)
        return found
    rotate(x)
    return x


def apply_rotary_emb_qkv_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cos_k: torch.Tensor | None = None,
    sin_k: torch.Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: Offsets = 0,
    num_heads_q: int | None = None,
) -> torch.Tensor:
    """Rotate queries and keys in place.

    :param qkv: [b, s, 3, n, d], or [b, s, nq + 2 g, d] with ``num_heads_q`` nq.
    :param cos: [positions, r / 2]; sin likewise, ``cos_k`` and ``sin_k`` where keys have their own.
    """
    turns = (cos, sin), (cos if cos_k is None else cos_k, sin if sin_k is None else sin_k)

    def rotate(packed: torch.Tensor, conjugate: bool = False) -> None:
        if packed.dim() == 5:
            parts = packed[:, :, 0], packed[:, :, 1]
        else:
            assert num_heads_q is not None
            keys = (packed.shape[2] - num_heads_q) // 2
            parts = packed[:, :, :num_heads_q], packed[:, :, num_heads_q : num_heads_q + keys]
        for part, turn in zip(parts, turns, strict=True):
            apply_rotary(part, *turn, seqlen_offsets, None, None, interleaved, True, conjugate)

    return _in_place(qkv, rotate)


def apply_rotary_emb_kv_(
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    seqlen_offsets: Offsets = 0,
) -> torch.Tensor:
    """Rotate the keys of kv [b, s, 2, g, d] in place."""

    def rotate(packed: torch.Tensor, conjugate: bool = False) -> None:
        key = packed[:, :, 0]
        apply_rotary(key, cos, sin, seqlen_offsets, None, None, interleaved, True, conjugate)

    return _in_place(kv, rotate)


def rotate_half(x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """(-b, a) for each pair (a, b) of the last dimension."""
    pairs = x.unflatten(-1, (-1, 2) if interleaved else (2, -1))
    axis = -1 if interleaved else -2
    first, second = pairs.unbind(axis)
    return torch.stack((-second, first), axis).flatten(-2)


def apply_rotary_emb_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """The formula in torch's operators; cos and sin [s, r / 2] or [b, s, r / 2]."""
    size = 2 * cos.shape[-1]
    wide = [
        (one.repeat_interleave(2, -1) if interleaved else torch.cat((one, one), -1)).unsqueeze(-2)
        for one in (cos, sin)
    ]
    rotated, rest = x[..., :size], x[..., size:]
    rotated = rotated * wide[0] + rotate_half(rotated, interleaved) * wide[1]
    return torch.cat((rotated, rest), -1)


class RotaryEmbedding(torch.nn.Module):
    """Rotary embedding with a table of its angles, and XPos where ``scale_base`` is given.

    :param dim: r.
    :param base: of the angles' geometric series.
    :param interleaved: pairs are neighbours, not halves.
    :param scale_base: tokens after which XPos's decay is its base; None for no decay (Sun et al.
        2022, arXiv:2212.10554).
    """

    inv_freq: torch.Tensor
    scale: torch.Tensor | None

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        self.scale_base = scale_base
        self.register_buffer("inv_freq", self._compute_inv_freq(device), persistent=False)
        scale = None
        if scale_base is not None:
            even = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
            scale = (even + 0.4 * dim) / (1.4 * dim)
        self.register_buffer("scale", scale, persistent=False)
        self._seq_len_cached = 0
        # Subclasses, such as ModernBERT's in Transformers, read these names.
        self._cos_cached: torch.Tensor | None = None
        self._sin_cached: torch.Tensor | None = None
        self._cos_k_cached: torch.Tensor | None = None
        self._sin_k_cached: torch.Tensor | None = None

    def _compute_inv_freq(self, device: torch.device | str | None = None) -> torch.Tensor:
        even = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32)
        return 1.0 / self.base ** (even / self.dim)

    def _update_cos_sin_cache(
        self,
        seqlen: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        cached = self._cos_cached
        if (
            cached is not None
            and seqlen <= self._seq_len_cached
            and (cached.device, cached.dtype) == (device, dtype)
            and not (self.training and cached.is_inference())
        ):
            return
        self._seq_len_cached = seqlen
        place = torch.arange(seqlen, device=device, dtype=torch.float32)
        # A model that was loaded in bfloat16 has rounded the buffer.
        rounded = self.inv_freq.dtype != torch.float32
        angles = torch.outer(place, self._compute_inv_freq(device) if rounded else self.inv_freq)
        cos, sin = angles.cos(), angles.sin()
        if self.scale is not None:
            assert self.scale_base is not None
            power = (place - seqlen // 2) / self.scale_base
            decay = self.scale.to(place) ** power[:, None]
            self._cos_k_cached, self._sin_k_cached = (
                (cos / decay).to(dtype),
                (sin / decay).to(dtype),
            )
            cos, sin = cos * decay, sin * decay
        self._cos_cached, self._sin_cached = cos.to(dtype), sin.to(dtype)

    def forward(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor | None = None,
        seqlen_offset: Offsets = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Rotate in place.

        :param qkv: see :func:`apply_rotary_emb_qkv_`; with ``kv`` the queries, [b, s, n, d].
        :param kv: [b, s, 2, g, d].
        :param max_seqlen: positions that the table must hold; needed with offsets in a tensor.
        :returns: qkv, or the queries and kv.
        """
        length = qkv.shape[1]
        if max_seqlen is not None:
            length = max_seqlen
        elif isinstance(seqlen_offset, int):
            length += seqlen_offset
        self._update_cos_sin_cache(length, qkv.device, qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None
        assert sin is not None
        keys = (self._cos_k_cached, self._sin_k_cached)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, *keys, self.interleaved, seqlen_offset, num_heads_q
            )
        query = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        cos, sin = (cos, sin) if keys[0] is None or keys[1] is None else (keys[0], keys[1])
        return query, apply_rotary_emb_kv_(kv, cos, sin, self.interleaved, seqlen_offset)
