"""Transformer Engine's Triton kernels of the permutation by a mask, where Triton has no device.

A map of rows is int32 [t, 2 * e + 1], as the kernels write it: of each token the rows of its
copies, the highest first and -1 behind them; their experts in the same order; their number.

Legend: t tokens, e experts, h hidden size, m rows of copies, c chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import TOKEN_UNPERMUTE
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.token_permute import pairs_of_rows, rows_of_map


def make_row_id_map(routing_map: torch.Tensor, num_tokens: int, num_experts: int) -> torch.Tensor:
    """The map of rows of a routing map [t, e], bool or integers."""
    rows = rows_of_map(routing_map, num_tokens * num_experts)
    ordered, experts = rows.sort(dim=1, descending=True)
    count = (rows >= 0).sum(1, keepdim=True)
    return torch.cat((ordered, experts.to(torch.int32), count.to(torch.int32)), dim=1)


def permute_with_mask_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None,
    scale: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Copies [m, h] sorted by expert; their scales [m, ...] and weights [m], or None.

    :param inp: [t, h], any dtype; bytes of FP8 too.
    :param rest: rows of padding before each expert's [e] or None (not in 2.8), t, e, m, h and the
        width of the scales.
    """
    pad_offsets = _offsets(rest)
    rows = _rows(row_id_map, rest[-3], pad_offsets)
    experts = rows.shape[1]
    pairs = pairs_of_rows(rows, rest[-3])

    def chosen(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        if pad_offsets is None:  # every row has a source; those beyond the last copy hold anything
            return tensor.index_select(0, index.clamp(max=tensor.shape[0] - 1))
        # What has no source reads zeros behind the last one.
        padding = (0, 0) * (tensor.dim() - 1) + (0, 1)
        return functional.pad(tensor, padding).index_select(0, index)

    sources = pairs // experts
    return (
        chosen(inp, sources),
        None if scale is None else chosen(scale, sources),
        None if probs is None else chosen(probs.reshape(-1), pairs),
    )


def unpermute_with_mask_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None,
    permuted_probs: torch.Tensor | None,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The sum [t, h] of each token's copies [m, h], weighted or not; and weights [m] as [t, e].

    :param merging_probs: [t, e].
    :param rest: the rows of padding or None (not in 2.8), t, e and h.
    """
    rows = _rows(row_id_map, inp.shape[0], _offsets(rest))
    output = kernel(TOKEN_UNPERMUTE)(inp, rows, merging_probs)
    if permuted_probs is None:
        return output, None
    found = permuted_probs.index_select(0, rows.clamp(min=0).reshape(-1)).view(rows.shape)
    return output, found.masked_fill(rows < 0, 0.0)


def unpermute_with_mask_map_bwd_with_merging_probs(
    fwd_output_grad: torch.Tensor,
    row_id_map: torch.Tensor,
    fwd_input: torch.Tensor,
    merging_probs: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of the copies [m, h] and of the weights [t, e].

    :param rest: the rows of padding or None (not in 2.8), t, e, m and h.
    """
    pad_offsets, copies = _offsets(rest), rest[-2]
    rows = _rows(row_id_map, copies, pad_offsets)
    tokens, experts = rows.shape
    pairs = pairs_of_rows(rows, copies)
    real = (pairs < tokens * experts).unsqueeze(-1)
    pairs = pairs.clamp(max=tokens * experts - 1)
    gradient = fwd_output_grad.index_select(0, pairs // experts).float()
    weights = merging_probs.reshape(-1).index_select(0, pairs).float().unsqueeze(-1)
    of_copies = (gradient * weights).masked_fill_(~real, 0.0).to(fwd_output_grad.dtype)
    products = (gradient * fwd_input.float()).masked_fill_(~real, 0.0).sum(-1)
    of_weights = products.new_zeros(tokens * experts).index_add_(0, pairs, products)
    return of_copies, of_weights.view(tokens, experts).to(merging_probs.dtype)


def make_chunk_sort_map(
    split_sizes: torch.Tensor, sorted_indices: torch.Tensor, num_tokens: int, num_splits: int
) -> torch.Tensor:
    """Where each row goes as chunks change their order: int32 [t].

    :param split_sizes: [c], integers: rows of each chunk.
    :param sorted_indices: [c], integers: which chunk comes first, second, ...
    """
    sizes, order = split_sizes.long(), sorted_indices.long()
    ends = sizes.cumsum(0)
    wanted = sizes.index_select(0, order)
    starts = torch.empty_like(ends).scatter_(0, order, wanted.cumsum(0) - wanted)
    row = torch.arange(num_tokens, device=sizes.device)
    chunk = torch.searchsorted(ends, row, right=True).clamp_(max=num_splits - 1)
    return (row + (starts - ends + sizes).index_select(0, chunk)).to(torch.int32)


def sort_chunks_by_map(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    probs: torch.Tensor | None,
    num_tokens: int,
    hidden_size: int,
    is_forward: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rows [t, h] and weights [t] in the new order, or back in the old one."""
    index = row_id_map.long()
    if is_forward:
        index = torch.empty_like(index).scatter_(
            0, index, torch.arange(num_tokens, device=index.device)
        )
    weights = None if probs is None else probs.index_select(0, index)
    return inp.index_select(0, index), weights


def _offsets(rest: tuple[Any, ...]) -> torch.Tensor | None:
    return rest[0] if isinstance(rest[0], torch.Tensor) else None


def _rows(row_id_map: torch.Tensor, copies: int, pad_offsets: torch.Tensor | None) -> torch.Tensor:
    """The row of each token's copy for each expert: int32 [t, e], -1 without one."""
    experts = row_id_map.shape[1] // 2
    ordered, numbers = row_id_map[:, :experts], row_id_map[:, experts : 2 * experts]
    rows = torch.empty_like(ordered).scatter_(1, numbers.long(), ordered)
    if pad_offsets is not None:
        rows = torch.where(rows < 0, rows, rows + pad_offsets.to(torch.int32))
    return rows.masked_fill(rows >= copies, -1)
