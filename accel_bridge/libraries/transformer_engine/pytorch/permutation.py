"""Tokens to their experts and back.

A map of rows is opaque to callers: it comes from a permute function and goes to
:func:`moe_unpermute`. That of a mask is int32 [t, e]: the row of each token's copy for each expert,
-1 without one. That of an index is int32 [k * t], as in the real library: the row of each token's
first, second, ... copy, -1 where it was dropped. Nothing waits for the device.

Legend: t tokens, e experts, h hidden size, k experts per token, m copies.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import torch
from torch.autograd.function import FunctionCtx

from accel_bridge.kernels import TOKEN_PERMUTE, TOKEN_UNPERMUTE, TensorCache
from accel_bridge.kernels.active import kernel

from ._copies import copies_of_fp8, sum_of_choices
from ._fp8_rows import is_fp8, select_rows

__all__ = [
    "moe_permute",
    "moe_permute_and_pad_with_probs",
    "moe_permute_with_probs",
    "moe_sort_chunks_by_index",
    "moe_sort_chunks_by_index_with_probs",
    "moe_unpermute",
]


def moe_permute(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copies of the tokens in the order (expert, token).

    :param inp: [t, h], any dtype, FP8 tensors included.
    :param routing_map: ``mask``: [t, e], 1 where a token goes to an expert; ``index``: [t, k], the
        experts of a token.
    :param num_out_tokens: m. -1: all; for a mask that waits for the device.
    :param max_token_num: sizes the real library's workspace; not used.
    :returns: copies [m, h] and the map of rows.
    :raises ValueError: another ``map_type``.
    """
    if map_type == "index":
        copies, rows = _apply(_moe_permute_index_map, inp, routing_map, num_out_tokens)
        return copies, rows
    if map_type == "mask":
        copies, _, rows = _by_mask(inp, routing_map, num_out_tokens, None, None)
        return copies, rows
    raise ValueError("map_type should be one of 'mask' or 'index'")


def moe_permute_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As :func:`moe_permute` for a mask, with the weight of each copy.

    :param probs: [t, e].
    :returns: copies [m, h], their weights [m], and the map of rows.
    """
    copies, weights, rows = _by_mask(inp, routing_map, num_out_tokens, probs, None)
    assert weights is not None
    return copies, weights, rows


def moe_permute_and_pad_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    routing_map: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    align_size: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """As :func:`moe_permute_with_probs`, each expert's rows filled up with zeros.

    :param tokens_per_expert: [e], integers: the copies of each expert.
    :param align_size: the numbers of rows become multiples of it.
    :returns: copies, weights and map of rows; the rows of padding before each expert's [e], or
        None where there are none; the padded numbers of rows [e].
    """
    assert tokens_per_expert is not None, "tokens_per_expert is needed to pad each expert's rows"
    assert align_size > 0, f"align_size must be positive, got {align_size}"
    counts = tokens_per_expert.to(inp.device).long()
    padded = (counts + align_size - 1) // align_size * align_size
    # The size of the output must be known, so this waits for the device, as the real function.
    total = int(padded.sum())
    offsets = None
    if not torch.equal(counts, padded):
        missing = padded - counts
        offsets = missing.cumsum(0) - missing
    copies, weights, rows = _by_mask(inp, routing_map, total, probs, offsets)
    assert weights is not None
    return copies, weights, rows, offsets, padded


def moe_unpermute(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None = None,
    restore_shape: torch.Size | None = None,
    map_type: str = "mask",
    probs: torch.Tensor | None = None,
    pad_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sum of each token's copies, weighted or not, in float32 and rounded once.

    :param inp: [m, h], any float dtype.
    :param row_id_map: the map of rows of the permutation.
    :param merging_probs: weights, [t, e] for a mask and [t, k] for an index.
    :param restore_shape: [t, h]; that of ``inp`` by default. Not used for an index.
    :param probs: deprecated name of ``merging_probs``.
    :param pad_offsets: fourth result of :func:`moe_permute_and_pad_with_probs`.
    :returns: [t, h] in the dtype of ``inp``.
    :raises ValueError: both names of the weights, or another ``map_type``.
    """
    if probs is not None:
        if merging_probs is not None:
            raise ValueError("merging_probs and its deprecated name probs are both given")
        warnings.warn("probs is deprecated; use merging_probs", stacklevel=2)
        merging_probs = probs
    if map_type == "index":
        merged: torch.Tensor = _apply(_moe_unpermute_index_map, inp, row_id_map, merging_probs)
    elif map_type == "mask":
        assert not is_fp8(inp), "moe_unpermute takes no FP8 tensors"
        if not inp.numel():
            return _nothing(inp, merging_probs)[0]
        complete = pad_offsets is None
        merged = kernel(TOKEN_UNPERMUTE)(inp, row_id_map, merging_probs, complete=complete)
    else:
        raise ValueError("map_type should be one of 'mask' or 'index'")
    return merged


def moe_sort_chunks_by_index(
    inp: torch.Tensor, split_sizes: torch.Tensor, sorted_index: torch.Tensor
) -> torch.Tensor:
    """Chunks of rows in another order.

    :param inp: [t, h], any dtype, FP8 tensors with one scale included.
    :param split_sizes: [chunks], integers: rows of each.
    :param sorted_index: [chunks], integers: which chunk comes first, second, ...
    :returns: [t, h].
    """
    if _is_in_order(sorted_index):
        return inp.view_as(inp)
    rows: torch.Tensor
    rows, _ = _apply(_moe_chunk_sort, inp, split_sizes, sorted_index, None)
    return rows


def moe_sort_chunks_by_index_with_probs(
    inp: torch.Tensor,
    probs: torch.Tensor,
    split_sizes: torch.Tensor,
    sorted_index: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`moe_sort_chunks_by_index`, with a weight [t] for each row."""
    if _is_in_order(sorted_index):
        return inp.view_as(inp), probs.view_as(probs)
    sorted_rows, weights = _apply(_moe_chunk_sort, inp, split_sizes, sorted_index, probs)
    return sorted_rows, weights


class _Index:
    """What is known about an index of chunks."""

    calls = 0
    in_order: bool | None = None


_INDICES: Final[TensorCache[_Index]] = TensorCache()


def _is_in_order(index: torch.Tensor) -> bool:
    """Whether the chunks stay where they are, as on one rank: then no row is copied.

    Reading an index waits for the device: only one that comes again is read, and only once.
    """
    known = _INDICES.get((index,), None, _Index)
    known.calls += 1
    if known.in_order is None and known.calls > 1:
        if index.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        known.in_order = index.tolist() == list(range(len(index)))
    return bool(known.in_order)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    return function.apply(*arguments)


class _moe_permute_fp8(torch.autograd.Function):
    """Copies of the rows of an FP8 tensor by a mask; their gradient is not FP8."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        inp: torch.Tensor,
        routing_map: torch.Tensor,
        num_out_tokens: int,
        probs: torch.Tensor | None,
        pad_offsets: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        saved: Any = ctx
        copies, weights, rows = copies_of_fp8(inp, routing_map, probs, num_out_tokens, pad_offsets)
        saved.save_for_backward(rows)
        saved.mark_non_differentiable(rows)
        return copies, weights, rows

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved: Any = ctx
        gradient, weights_gradient, _ = gradients
        (rows,) = saved.saved_tensors
        of_probs = None
        if saved.needs_input_grad[3]:
            found = weights_gradient.index_select(0, rows.clamp(min=0).reshape(-1))
            of_probs = found.view(rows.shape).masked_fill(rows < 0, 0)
        if not saved.needs_input_grad[0]:
            return None, None, None, of_probs, None
        assert not is_fp8(gradient), "the gradient of moe_permute cannot be FP8"
        return kernel(TOKEN_UNPERMUTE)(gradient, rows), None, None, of_probs, None


def _nothing(
    inp: torch.Tensor, probs: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Where there are no rows: none, and no weights. Both inputs get gradients all the same."""
    weights = None if probs is None else probs.reshape(-1)[:0]
    if weights is None or is_fp8(inp):
        return inp, weights
    return inp + weights.sum().to(inp.dtype), weights


def _by_mask(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int,
    probs: torch.Tensor | None,
    pad_offsets: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Copies [m, h], their weights [m] or None, and the map of rows [t, e]."""
    if not inp.numel():
        copies, weights = _nothing(inp, probs)
        return copies, weights, inp.new_empty(0, dtype=torch.int32)
    assert inp.size(0) == routing_map.size(0), "routing_map has another number of tokens"
    number = int(num_out_tokens)
    if number < 0:
        number = int(routing_map.sum())
    if is_fp8(inp):
        result: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor] = _apply(
            _moe_permute_fp8, inp, routing_map, number, probs, pad_offsets
        )
        return result
    return kernel(TOKEN_PERMUTE)(
        inp, routing_map, probs, num_out_tokens=number, pad_offsets=pad_offsets
    )


class _moe_permute_index_map(torch.autograd.Function):
    """Copies of tokens by lists of experts."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, inp: torch.Tensor, index: torch.Tensor, num_out_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        saved: Any = ctx
        if not inp.numel():
            saved.save_for_backward(None)
            return inp, inp.new_empty(0, dtype=torch.int32)
        assert inp.size(0) == index.size(0), "the index has another number of tokens"
        tokens, choices = index.shape
        order = index.reshape(-1).argsort(stable=True)
        if num_out_tokens > 0:
            order = order[:num_out_tokens]
        rows = order.new_full((tokens * choices,), -1, dtype=torch.int32)
        rows[order % choices * tokens + order // choices] = torch.arange(
            len(order), dtype=torch.int32, device=rows.device
        )
        saved.save_for_backward(rows)
        saved.tokens = tokens
        saved.mark_non_differentiable(rows)
        return select_rows(inp, order // choices), rows

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved: Any = ctx
        (rows,) = saved.saved_tensors
        if rows is None or not saved.needs_input_grad[0]:
            return gradients[0], None, None
        return sum_of_choices(gradients[0], rows.view(-1, saved.tokens), None), None, None


class _moe_unpermute_index_map(torch.autograd.Function):
    """Sums of copies by the map of lists of experts."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        inp: torch.Tensor,
        row_id_map: torch.Tensor,
        probs: torch.Tensor | None,
    ) -> torch.Tensor:
        saved: Any = ctx
        if not inp.numel():
            saved.save_for_backward(None, None, probs)
            return inp
        choices = 1 if probs is None else probs.size(1)
        rows = row_id_map.view(choices, -1)
        saved.save_for_backward(inp, rows, probs)
        return sum_of_choices(inp, rows, probs)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved: Any = ctx
        (gradient,) = gradients
        inp, rows, probs = saved.saved_tensors
        if rows is None:
            return gradient, None, None if probs is None else torch.zeros_like(probs)
        result = torch.zeros_like(inp)
        products = []
        for choice, places in enumerate(rows):
            kept = (places >= 0).unsqueeze(-1)
            places = places.clamp(min=0).long()
            if probs is not None:
                values = inp.index_select(0, places)
                products.append((gradient.float() * values).sum(-1).masked_fill(~kept[:, 0], 0.0))
            weight = 1.0 if probs is None else probs[:, choice].float().unsqueeze(-1)
            share = (gradient.float() * weight).masked_fill(~kept, 0.0)
            # Rows are unique but for those that were dropped, which add nothing.
            result.index_add_(0, places, share.to(result.dtype))
        if probs is None:
            return result, None, None
        return result, None, torch.stack(products, -1).to(probs.dtype)


class _moe_chunk_sort(torch.autograd.Function):
    """Chunks of rows in another order."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        inp: torch.Tensor,
        split_sizes: torch.Tensor,
        sorted_idxs: torch.Tensor,
        probs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        saved: Any = ctx
        if not inp.numel():
            saved.save_for_backward(None)
            return inp, probs
        assert split_sizes.size(0) == sorted_idxs.size(0), "as many indices as chunks are needed"
        sizes, order = split_sizes.long(), sorted_idxs.long()
        ends = sizes.index_select(0, order).cumsum(0)
        shifts = (sizes.cumsum(0) - sizes).index_select(0, order) - ends
        shifts += sizes.index_select(0, order)
        rows = torch.arange(inp.size(0), device=inp.device)
        chunk = torch.searchsorted(ends, rows, right=True).clamp_(max=len(sizes) - 1)
        origins = rows + shifts.index_select(0, chunk)
        saved.save_for_backward(origins)
        weights = None if probs is None else probs.index_select(0, origins)
        return select_rows(inp, origins), weights

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved: Any = ctx
        gradient, weights_gradient = gradients
        (origins,) = saved.saved_tensors
        if origins is None:
            return gradient, None, None, weights_gradient
        targets = torch.empty_like(origins)
        targets[origins] = torch.arange(len(origins), device=origins.device)
        rows = select_rows(gradient, targets) if saved.needs_input_grad[0] else None
        weights = None
        if saved.needs_input_grad[3]:
            weights = weights_gradient.index_select(0, targets)
        return rows, None, None, weights
