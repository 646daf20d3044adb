"""Contracts ``token_permute`` and ``token_unpermute``: tokens to their experts and back.

Legend: t tokens, e experts, h hidden size, m routed copies (t * top-k without dropping).
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract


def token_permute_reference(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None = None,
    *,
    num_out_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Copies of the tokens sorted by expert, and by token inside an expert. Nothing is computed.

    :param tokens: [t, h], any dtype.
    :param routing_map: [t, e], bool: which experts get a token.
    :param probs: [t, e], router's weights, or None.
    :param num_out_tokens: m, the number of True in the map; the caller knows it, so no device
        synchronization is needed.
    :returns: copies [m, h]; their weights [m] or None; the token each copy comes from [m], int64.
    """
    # A stable sort puts the True entries first and keeps the order expert, then token.
    by_expert = routing_map.t().reshape(-1)
    order = by_expert.to(torch.uint8).argsort(descending=True, stable=True)[:num_out_tokens]
    indices = order % tokens.shape[0]
    weights = None if probs is None else probs.t().reshape(-1).index_select(0, order)
    return tokens.index_select(0, indices), weights, indices


def token_unpermute_reference(
    permuted: torch.Tensor,
    indices: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    num_tokens: int,
) -> torch.Tensor:
    """``output[indices[j]] += weights[j] * permuted[j]``; tokens without a copy are zeros.

    As in Megatron, float32 weights make the products and sums float32.

    :param permuted: [m, h], any float dtype.
    :param indices: [m], int64, from ``token_permute``.
    :param weights: [m] or None for all ones.
    :param num_tokens: t.
    :returns: [t, h] in the dtype of ``permuted``.
    """
    values = permuted if weights is None else permuted * weights.unsqueeze(-1)
    output = values.new_zeros(num_tokens, permuted.shape[-1])
    return output.index_add(0, indices, values).to(permuted.dtype)


TOKEN_PERMUTE = Contract(
    name="token_permute",
    reference=token_permute_reference,
    formula="copies of tokens in the order (expert, token)",
    source="semantics of Megatron's moe_utils.permute",
)
TOKEN_UNPERMUTE = Contract(
    name="token_unpermute",
    reference=token_unpermute_reference,
    formula="y[index[j]] += weight[j] * x[j]",
    source="semantics of Megatron's moe_utils.unpermute",
)
