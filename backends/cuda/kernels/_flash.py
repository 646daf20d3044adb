"""torch's FlashAttention-2 operator with what ``scaled_dot_product_attention`` leaves out:

band windows, packed sequences, the log-sum-exp and a sink in the softmax's denominator.

Legend: b batch, s sequence (sq queries, sk keys), n query heads, g key/value heads, d head size,
dv of values, t tokens of packed sequences.

The sink (logit o per head) scales the plain output by ``c = sigmoid(lse - o)``. Its gradient needs
no kernel of its own: FlashAttention's backward pass computes ``rowsum(grad * output)`` from the
output it receives. Given the *scaled* output and ``c * grad`` instead, that sum is exactly what the
gradient of the scaled output requires.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Packing:
    """Sequences of a packed call: cumulative lengths (int32, with the 0) and longest lengths."""

    queries: torch.Tensor
    keys: torch.Tensor
    longest_query: int
    longest_key: int


@dataclass(frozen=True, slots=True)
class Band:
    """Keys ``i - left <= j <= i + right``, the last query at the last key; -1 is unlimited."""

    left: int = -1
    right: int = -1


class _Flash(torch.autograd.Function):
    """Output and log-sum-exp of q [b, sq, n, d], k, v [b, sk, g, d]; packed: [t, heads, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        offset: torch.Tensor | None,
        packing: Packing | None,
        band: Band,
        scale: float,
        dropout: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = _sizes(query, key, packing)
        output, lse, rng_state, unused, _ = torch.ops.aten._flash_attention_forward(
            query,
            key,
            value,
            *sizes,
            dropout,
            band == Band(-1, 0),
            False,
            scale=scale,
            window_size_left=band.left,
            window_size_right=band.right,
        )
        share = None
        if offset is not None:
            share = _share(lse, offset, packing is not None)
            output = (output * share).to(query.dtype)
        ctx.save_for_backward(query, key, value, output, lse, rng_state, unused, share)
        ctx.packing, ctx.band, ctx.scale, ctx.dropout = packing, band, scale, dropout
        ctx.offset_dtype = None if offset is None else offset.dtype
        ctx.mark_non_differentiable(lse)
        return output, lse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        query, key, value, output, lse, rng_state, unused, share = ctx.saved_tensors
        gradient = gradients[0]
        for_offset = None
        if share is not None:
            products = (gradient.float() * output.float()).sum(-1, keepdim=True)
            losses = products * (share - 1.0)
            for_offset = losses.flatten(0, -3).sum(0).squeeze(-1).to(ctx.offset_dtype)
            gradient = (gradient * share).to(query.dtype)
        band: Band = ctx.band
        grads = torch.ops.aten._flash_attention_backward(
            gradient,
            query,
            key,
            value,
            output,
            lse,
            *_sizes(query, key, ctx.packing),
            ctx.dropout,
            band == Band(-1, 0),
            rng_state,
            unused,
            scale=ctx.scale,
            window_size_left=band.left,
            window_size_right=band.right,
        )
        return (*grads, for_offset, None, None, None, None)


def _sizes(
    query: torch.Tensor, key: torch.Tensor, packing: Packing | None
) -> tuple[torch.Tensor | None, torch.Tensor | None, int, int]:
    """The operator's four arguments that give the sequence lengths."""
    if packing is None:
        return None, None, query.shape[1], key.shape[1]
    return packing.queries, packing.keys, packing.longest_query, packing.longest_key


def _share(lse: torch.Tensor, offset: torch.Tensor, packed: bool) -> torch.Tensor:
    """What a sink leaves of each row's weight: float32, [b, s, n, 1] or [t, n, 1]."""
    rows = lse.transpose(-1, -2)  # [b, s, n] or [t, n]
    # Rows that see nothing have an infinite log-sum-exp and an output of zeros.
    return torch.sigmoid(rows - offset.float()).unsqueeze(-1)


def filled_up(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], int]:
    """The tensors with zeros behind d and dv, up to one multiple of 8; and dv.

    Zeros add nothing to a score, and what they make of the values is cut off again.
    """
    d, dv = query.shape[-1], value.shape[-1]
    width = -(-max(d, dv) // 8) * 8
    if d < width:
        query, key = (torch.nn.functional.pad(one, (0, width - d)) for one in (query, key))
    if dv < width:
        value = torch.nn.functional.pad(value, (0, width - dv))
    return (query, key, value), dv


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    offset: torch.Tensor | None = None,
    packing: Packing | None = None,
    band: Band = Band(),
    scale: float,
    dropout: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashAttention-2 on strided views; copies nothing if d and dv are one multiple of 8.

    :param query: [b, sq, n, d], or [t, n, d] with ``packing``; float16 or bfloat16.
    :param key: as query, with g heads; value likewise, with dv for d.
    :param offset: [n], logits of the sink.
    :returns: output as query; log-sum-exp float32 [b, n, sq] or [n, t], -inf for rows that see
        nothing.
    """
    tensors, dv = filled_up(query, key, value)
    output, lse = _Flash.apply(*tensors, offset, packing, band, scale, dropout)
    return output[..., :dv], lse.masked_fill(lse == torch.inf, -torch.inf)
