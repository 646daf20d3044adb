"""Gradients of attention from an output and a log-sum-exp that may cover more keys.

Legend: t tokens of packed sequences, n query heads, g key heads, d head size.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels import (
    AttentionOptions,
    attention_bias,
    compute_dtype,
    options_of_sequence,
    sequence_lengths,
)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@torch.no_grad()
def gradients(
    grad: torch.Tensor,
    tensors: Tensors,
    output: torch.Tensor,
    lse: torch.Tensor,
    into: Tensors,
    options: AttentionOptions,
) -> torch.Tensor:
    """Write the gradients of query [t, n, d], key and value [t', g, d] into ``into``.

    ``P = exp(S - lse)`` and ``dS = P * (grad V^T - sum(grad * output))`` (Dao et al. 2022,
    arXiv:2205.14135, appendix B), at least in float32, one sequence and key head at a time. A soft
    cap's derivative is ``1 - tanh^2``.

    :param lse: float32 [n, t].
    :returns: float32 [n, t], ``sum(grad * output)``.
    """
    query, key, value = tensors
    assert options.scale is not None
    dtype = compute_dtype(query)
    products = (grad.to(dtype) * output.to(dtype)).sum(-1).transpose(0, 1)
    repeat = query.shape[1] // key.shape[1]
    start_q = start_k = 0
    for number, (sq, sk) in enumerate(sequence_lengths(query, key, options)):
        rows, columns = slice(start_q, start_q + sq), slice(start_k, start_k + sk)
        start_q, start_k = rows.stop, columns.stop
        hidden = options.mask.hidden(sq, sk, query.device)
        bias = attention_bias(options_of_sequence(options, number), sq, sk)  # [1, n, sq, sk]
        for group in range(key.shape[1]):
            heads = slice(group * repeat, (group + 1) * repeat)
            # [repeat, sq, d] against [sk, d].
            q, dout = (one[rows, heads].transpose(0, 1).to(dtype) for one in (query, grad))
            k, v = (one[columns, group].to(dtype) for one in (key, value))
            logits, slope = q @ k.T * options.scale, None
            if options.softcap:
                capped = torch.tanh(logits / options.softcap)
                logits, slope = options.softcap * capped, 1.0 - capped.square()
            if bias is not None:
                logits = logits + bias[0, heads]
            weights = torch.exp(logits - lse[heads, rows, None])
            if hidden is not None:
                weights = weights.masked_fill(hidden, 0.0)
            # Rows that see nothing have no finite log-sum-exp.
            weights = weights.nan_to_num(0.0, 0.0, 0.0)
            scores = weights * (dout @ v.T - products[heads, rows, None])
            scores = (scores if slope is None else scores * slope) * options.scale
            into[0][rows, heads] = (scores @ k).transpose(0, 1).to(into[0].dtype)
            into[1][columns, group] = torch.einsum("hqk,hqd->kd", scores, q).to(into[1].dtype)
            into[2][columns, group] = torch.einsum("hqk,hqd->kd", weights, dout).to(into[2].dtype)
    return products
