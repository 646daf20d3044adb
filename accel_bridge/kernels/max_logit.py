"""Contract ``attention_max_logit``: the largest attention score of each head.

Legend: as :mod:`accel_bridge.kernels.attention`.
"""

from __future__ import annotations

import math

import torch

from accel_bridge.kernels._contract import Contract, compute_dtype
from accel_bridge.kernels._layout import to_bnsd
from accel_bridge.kernels.attention import AttentionOptions, sequence_lengths


def max_logit_reference(
    query: torch.Tensor, key: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """``max_ij S_ij`` of each head over the visible pairs, ``S = scale * Q K^T + bias``.

    :param query: [.., n, d] in ``options.layout``; float16, bfloat16, float32 or float64.
    :param key: like query, with g heads.
    :param options: those of the attention call; dropout, sink and ``return_lse`` do not matter.
    :returns: [n], float32 (float64 for float64), detached; -inf for a head that sees nothing.
    :raises ValueError: as the contract ``attention``; a soft cap, or ALiBi.
    """
    if options.softcap or options.alibi_slopes is not None:
        raise ValueError("the largest logit is that of attention without a soft cap and ALiBi")
    query, key = query.detach(), key.detach()
    if options.layout != "TND":
        query, key, _ = to_bnsd(query, key, key, options.layout, options.heads)
        return _largest(query, key, options)
    lengths = sequence_lengths(query, key, options)
    sequences = zip(
        torch.split(query, [sq for sq, _ in lengths]),
        torch.split(key, [sk for _, sk in lengths]),
        strict=True,
    )
    largest = query.new_full((query.shape[1],), -torch.inf, dtype=compute_dtype(query))
    for one, other in sequences:
        found = _largest(one.transpose(0, 1)[None], other.transpose(0, 1)[None], options)
        largest = torch.maximum(largest, found)
    return largest


def _largest(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """[n] of query [b, n, sq, d] and key [b, g, sk, d]; a matrix of scores for one head a time."""
    batch, heads, sq, head_dim = query.shape
    kv_heads, sk = key.shape[1], key.shape[2]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    dtype = compute_dtype(query)
    largest = query.new_full((heads,), -torch.inf, dtype=dtype)
    if not batch * sq * sk:
        return largest
    scale = 1.0 / math.sqrt(head_dim) if options.scale is None else options.scale
    hidden = options.mask.hidden(sq, sk, query.device)
    for head in range(heads):
        one, other = query[:, head].to(dtype), key[:, head // (heads // kv_heads)].to(dtype)
        scores = (one @ other.transpose(1, 2)) * scale
        if options.bias is not None:
            scores = scores + _of_head(options.bias.detach(), head).to(dtype)
        if hidden is not None:
            scores = scores.masked_fill(_of_head(hidden, head), -torch.inf)
        largest[head] = scores.amax()
    return largest


def _of_head(matrix: torch.Tensor, head: int) -> torch.Tensor:
    """One head's part of something broadcastable to [b, n, sq, sk]."""
    if matrix.dim() < 3:
        return matrix
    return matrix.select(-3, head if matrix.shape[-3] > 1 else 0)


ATTENTION_MAX_LOGIT = Contract(
    name="attention_max_logit",
    reference=max_logit_reference,
    formula="max over visible i, j of scale * Q K^T + bias, for each head",
    source="Muon with qk-clip: Kimi K2, arXiv:2507.20534; semantics of Transformer Engine's "
    "return_max_logit",
)
