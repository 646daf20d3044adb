"""Attention through torch's scaled_dot_product_attention (SDPA), for every device that has it."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import torch
from torch.nn.functional import scaled_dot_product_attention

from accel_bridge.kernels import (
    ATTENTION,
    AttentionMask,
    AttentionOptions,
    AttentionResult,
    attention_bias,
    from_bnsd,
    hidden_band,
    options_of_sequence,
    sequence_lengths,
    to_bnsd,
)


@lru_cache(maxsize=8)
def _visible_band(
    bounds: tuple[int | None, int | None], sq: int, sk: int, device: torch.device
) -> tuple[torch.Tensor | None, bool]:
    """SDPA's mask of a band, kept for the next layers and steps.

    :returns: bool [sq, sk], True = visible, or None; and whether a row sees nothing.
    """
    hidden = hidden_band(bounds, sq, sk, device)
    if hidden is None:
        return None, False
    return ~hidden, bool(hidden.all(-1).any())


def _visible(
    mask: AttentionMask, sq: int, sk: int, device: torch.device
) -> tuple[torch.Tensor | None, bool]:
    """SDPA's mask for ``mask``, and whether a row may see nothing.

    :returns: bool, True = visible, broadcastable to [b, n, sq, sk]; None when everything is.
    """
    band, empty_rows = _visible_band(mask.bounds(sq, sk), sq, sk, device)
    if mask.masked is None:
        return band, empty_rows
    return (~mask.masked if band is None else band & ~mask.masked), True


def _biased(bias: torch.Tensor, visible: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """SDPA's additive mask. The lowest finite number hides: -inf makes NaN of an empty row."""
    bias = bias.to(dtype)
    return bias if visible is None else bias.masked_fill(~visible, torch.finfo(dtype).min)


def attend(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: AttentionOptions,
) -> torch.Tensor:
    """SDPA of BNSD tensors: [b, n, sq, dv]; rows that see nothing are zeros.

    The zeros are set here because torch's kernels differ: its CUDA kernels average all values.
    """
    query, key, value = tensors
    mask = options.mask
    sq, sk = query.shape[2], key.shape[2]
    bias = attention_bias(options, sq, sk)
    causal = mask.is_plain_causal(sq, sk) and bias is None
    visible, empty_rows = (None, False) if causal else _visible(mask, sq, sk, query.device)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible if bias is None else _biased(bias, visible, query.dtype),
        dropout_p=options.dropout,
        is_causal=causal,
        scale=options.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    if visible is None or not empty_rows:
        return output
    return output.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> AttentionResult:
    """The contract ``attention`` on views of the inputs; packed sequences run one by one."""
    if options.layout != "TND":
        tensors = to_bnsd(query, key, value, options.layout, options.heads)
        return from_bnsd(attend(tensors, options), options.layout)
    lengths = sequence_lengths(query, key, options)
    outputs = [query.new_empty(0, query.shape[1], value.shape[2])]
    starts = accumulate(lengths, lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0))
    for number, ((start_q, start_k), (sq, sk)) in enumerate(zip(starts, lengths, strict=False)):
        sequence = (
            query[start_q : start_q + sq].transpose(0, 1).unsqueeze(0),
            key[start_k : start_k + sk].transpose(0, 1).unsqueeze(0),
            value[start_k : start_k + sk].transpose(0, 1).unsqueeze(0),
        )
        output = attend(sequence, options_of_sequence(options, number))
        outputs.append(output.squeeze(0).transpose(0, 1))
    return torch.cat(outputs)


def _supports(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> str | None:
    if options.softmax_offset is not None:
        return "torch's SDPA has no sink in the softmax's denominator"
    if options.return_lse:
        return "torch's SDPA does not return the log-sum-exp"
    if options.softcap:
        return "torch's SDPA has no soft cap of the scores"
    return None


SDPA = ATTENTION.kernel(
    attention,
    why="SDPA keeps no score matrix (with dropout torch itself falls back to one)",
    supports=_supports,
    source="torch.nn.functional.scaled_dot_product_attention",
)
