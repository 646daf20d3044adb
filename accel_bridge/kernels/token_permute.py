"""Contracts ``token_permute`` and ``token_unpermute``: tokens to their experts and back.

Legend: t tokens, e experts, h hidden size, m rows of copies (t * top-k without dropping).
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract


def rows_of_map(
    routing_map: torch.Tensor, copies: int, pad_offsets: torch.Tensor | None = None
) -> torch.Tensor:
    """The row of each token's copy for each expert: int32 [t, e], -1 without a copy."""
    tokens, experts = routing_map.shape
    routed = routing_map.t().bool()
    place = routed.reshape(-1).cumsum(0).view(experts, tokens) - 1
    if pad_offsets is not None:
        place = place + pad_offsets.unsqueeze(-1)
    place = place.masked_fill(~routed | (place >= copies), -1)
    return place.t().to(torch.int32).contiguous()


def pairs_of_rows(rows: torch.Tensor, copies: int) -> torch.Tensor:
    """The inverse of the map: ``token * e + expert`` of each row, t * e for a row of padding.

    :param rows: int [t, e], -1 without a copy.
    :param copies: m.
    :returns: int64 [m]. Nothing waits for the device.
    """
    flat = rows.reshape(-1).long()
    place = torch.where(flat < 0, copies, flat)
    pairs = torch.full((copies + 1,), flat.shape[0], dtype=torch.int64, device=rows.device)
    pairs.scatter_(0, place, torch.arange(flat.shape[0], device=rows.device))
    return pairs[:copies]


def token_permute_reference(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None = None,
    *,
    num_out_tokens: int,
    pad_offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Copies of the tokens sorted by expert, and by token inside an expert. Nothing is computed.

    :param tokens: [t, h], any float dtype.
    :param routing_map: [t, e], bool or integers: which experts get a token.
    :param probs: [t, e], router's weights, or None.
    :param num_out_tokens: m, the number of copies (with ``pad_offsets``, of rows); the caller knows
        it, so no device synchronization is needed. Copies beyond it are dropped.
    :param pad_offsets: [e], integers: rows of padding before each expert's copies; they are zeros.
    :returns: copies [m, h]; their weights [m] or None; the row of each token's copy for each
        expert, int32 [t, e], -1 without a copy.
    """
    rows = rows_of_map(routing_map, num_out_tokens, pad_offsets)
    pairs = pairs_of_rows(rows, num_out_tokens)
    sources = pairs // routing_map.shape[1]
    weights = None
    if pad_offsets is None:
        copies = tokens.index_select(0, sources)
        if probs is not None:
            weights = probs.reshape(-1).index_select(0, pairs)
    else:
        # What has no source reads zeros behind the last token.
        copies = torch.nn.functional.pad(tokens, (0, 0, 0, 1)).index_select(0, sources)
        if probs is not None:
            weights = torch.nn.functional.pad(probs.reshape(-1), (0, 1)).index_select(0, pairs)
    return copies, weights, rows


def token_unpermute_reference(
    permuted: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    complete: bool = False,
) -> torch.Tensor:
    """``output[i] = sum_j weights[i, j] * permuted[rows[i, j]]``; a token without copies is zeros.

    Products and sums are float32 and rounded once. Rows that no token has are not read.

    :param permuted: [m, h], any float dtype.
    :param rows: int32 [t, e], from ``token_permute``.
    :param weights: [t, e] or None for all ones.
    :param complete: every row belongs to a token; gradients of other rows need not be zeros.
    :returns: [t, h] in the dtype of ``permuted``.
    """
    tokens, experts = rows.shape
    pairs = pairs_of_rows(rows, permuted.shape[0])
    wide = torch.promote_types(permuted.dtype, torch.float32)
    # Padding may hold anything: it is added to a token that does not exist.
    values = permuted.to(wide)
    if weights is not None:
        flat = torch.nn.functional.pad(weights.reshape(-1).to(wide), (0, 1))
        values = values * flat.index_select(0, pairs).unsqueeze(-1)
    output = values.new_zeros(tokens + 1, permuted.shape[-1])
    output = output.index_add(0, pairs // experts, values)
    return output[:tokens].to(permuted.dtype)


TOKEN_PERMUTE = Contract(
    name="token_permute",
    reference=token_permute_reference,
    formula="copies of tokens in the order (expert, token)",
    source="semantics of Megatron's moe_utils.permute",
)
TOKEN_UNPERMUTE = Contract(
    name="token_unpermute",
    reference=token_unpermute_reference,
    formula="y[i] = sum over j of weight[i, j] * x[row[i, j]]",
    source="semantics of Megatron's moe_utils.unpermute",
)
