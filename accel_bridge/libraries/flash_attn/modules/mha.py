"""flash-attn's attention modules. ``MHA``, with projections and caches, is absent.

Legend: b batch, s sequence, sq and sk lengths of queries and keys, t tokens of packed sequences,
n query heads, g key heads, d head size.
"""

from __future__ import annotations

from typing import Any

import torch

from ..flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

__all__ = [
    "CrossAttention",
    "FlashCrossAttention",
    "FlashSelfAttention",
    "SelfAttention",
    "get_alibi_slopes",
]

Tensor = torch.Tensor


def get_alibi_slopes(nheads: int) -> list[float]:
    """ALiBi's slopes: 2^(-8 i / n), and for other numbers than powers of 2 those between, too."""
    power = 1 << (nheads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (one + 1) / power) for one in range(power)]
    between = [2.0 ** (-4.0 * (2 * one + 1) / power) for one in range(nheads - power)]
    return slopes + between


class _Flash(torch.nn.Module):
    """Options of FlashAttention; an ``attention_dropout`` counts in training only."""

    alibi_slopes: Tensor | None

    def __init__(
        self,
        causal: bool,
        softmax_scale: float | None,
        attention_dropout: float,
        window_size: tuple[int, int],
        alibi_slopes: Tensor | None,
        deterministic: bool,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = torch.nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size = window_size
        self.deterministic = deterministic

    def _options(self, causal: bool | None) -> dict[str, Any]:
        slopes = self.alibi_slopes
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "alibi_slopes": None if slopes is None else slopes.float(),
            "window_size": self.window_size,
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_Flash):
    """:func:`flash_attn_qkvpacked_func` as a module."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__(
            causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic
        )

    def forward(
        self,
        qkv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Any:
        """qkv [b, s, 3, n, d], or [t, 3, n, d] with ``cu_seqlens`` -> without the 3."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **options)
        assert max_seqlen is not None
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **options)


class FlashCrossAttention(_Flash):
    """:func:`flash_attn_kvpacked_func` as a module."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        alibi_slopes: Tensor | None = None,
        window_size: tuple[int, int] = (-1, -1),
        deterministic: bool = False,
    ) -> None:
        super().__init__(
            causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic
        )

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Any:
        """q [b, sq, n, d], kv [b, sk, 2, g, d], or packed ones -> as q."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **options)
        assert cu_seqlens_k is not None
        assert max_seqlen is not None
        assert max_seqlen_k is not None
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **options
        )


class CrossAttention(torch.nn.Module):
    """Attention by its formula; hidden scores are about -10000, not minus infinity."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = torch.nn.Dropout(attention_dropout)

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """q [b, sq, n, d], kv [b, sk, 2, g, d] -> as q.

        :param key_padding_mask: bool [b, sk], True for keys that are seen; a causal mask then ends
            at the last of them.
        """
        length = None if key_padding_mask is None else key_padding_mask.sum(-1)
        return self._attend(q, kv, causal, key_padding_mask, length)

    def _attend(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None,
        seen: Tensor | None,
        length: Tensor | None,
    ) -> Tensor:
        """The formula; a causal mask ends at the keys' ``length`` [b], None for all."""
        k, v = (one.repeat_interleave(q.shape[2] // kv.shape[3], 2) for one in kv.unbind(2))
        scale = self.softmax_scale or q.shape[-1] ** -0.5
        scores = torch.einsum("bqnd,bknd->bnqk", q, k * scale)
        if seen is not None:
            scores = scores + (~seen[:, None, None]).to(scores.dtype) * -10000.0
        if self.causal if causal is None else causal:
            sq, sk = scores.shape[-2:]
            row, column = (torch.arange(one, device=q.device) for one in (sq, sk))
            last = row[:, None] - sq + (sk if length is None else length[:, None, None, None])
            scores = scores.masked_fill(column > last, -10000.0)
        weights = torch.softmax(scores, dim=-1, dtype=v.dtype)
        return torch.einsum("bnqk,bknd->bqnd", self.drop(weights), v)


class SelfAttention(CrossAttention):
    """:class:`CrossAttention` of packed queries, keys and values."""

    def forward(  # type: ignore[override]
        self, qkv: Tensor, causal: bool | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """qkv [b, s, 3, n, d] -> [b, s, n, d]; a causal mask does not depend on the padding."""
        return self._attend(qkv[:, :, 0], qkv[:, :, 1:], causal, key_padding_mask, None)
