"""Tokens to their experts and back by a mask, on the contracts ``token_permute`` and its inverse.

Transformer Engine's own functions are operators whose call alone takes longer than the copies of
small layers. A map of rows made here is int32 [t, e, 1]: theirs have two dimensions, and go to
their own functions.

Legend: t tokens, e experts, h hidden size, m copies, c chunks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.kernels import TOKEN_PERMUTE, TOKEN_UNPERMUTE, TensorCache
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.token_permute import pairs_of_rows, rows_of_map
from accel_bridge.libraries.transformer_engine_torch.fast import PLAIN


class _Permute(torch.autograd.Function):
    """Copies as the contract's reference makes them; their gradient is summed in float32."""

    @staticmethod
    def forward(
        ctx: Any, inp: Any, routing_map: Any, probs: Any, copies: int
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        rows = rows_of_map(routing_map, copies)
        pairs = pairs_of_rows(rows, copies)
        sources = pairs // routing_map.shape[1]
        weights = None if probs is None else probs.reshape(-1).index_select(0, pairs)
        ctx.save_for_backward(rows, sources)
        ctx.mark_non_differentiable(rows)
        ctx.set_materialize_grads(False)
        return inp.index_select(0, sources), weights, rows

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        rows, sources = ctx.saved_tensors
        of_inp = of_probs = None
        if ctx.needs_input_grad[0] and gradients[0] is not None:
            wide = gradients[0].float()
            of_inp = wide.new_zeros(rows.shape[0], wide.shape[1]).index_add_(0, sources, wide)
            of_inp = of_inp.to(gradients[0].dtype)
        if ctx.needs_input_grad[2] and gradients[1] is not None:
            found = gradients[1].index_select(0, rows.clamp(min=0).reshape(-1))
            of_probs = found.view(rows.shape).masked_fill(rows < 0, 0)
        return of_inp, None, of_probs, None


class _Sort(torch.autograd.Function):
    """Rows in another order."""

    @staticmethod
    def forward(ctx: Any, inp: Any, probs: Any, origins: Any) -> Any:
        ctx.save_for_backward(origins)
        ctx.set_materialize_grads(False)
        weights = None if probs is None else probs.index_select(0, origins)
        return inp.index_select(0, origins), weights

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        (origins,) = ctx.saved_tensors
        # Every row has one origin: nothing is added twice.
        back = [
            None if one is None else torch.empty_like(one).index_copy_(0, origins, one)
            for one in gradients
        ]
        return back[0], back[1], None


def permute(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``moe_permute``."""

    @functools.wraps(original)
    def moe_permute(
        inp: Any, routing_map: Any, num_out_tokens: int = -1, *args: Any, **kwargs: Any
    ) -> Any:
        if kwargs.get("map_type", args[1] if len(args) > 1 else "mask") == "mask" and _plain(
            inp, num_out_tokens
        ):
            moved, _, rows = _permuted(inp, routing_map, None, num_out_tokens)
            return moved, rows
        return original(inp, routing_map, num_out_tokens, *args, **kwargs)

    return moe_permute


def permute_with_probs(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``moe_permute_with_probs``."""

    @functools.wraps(original)
    def moe_permute_with_probs(
        inp: Any, probs: Any, routing_map: Any, num_out_tokens: int = -1
    ) -> Any:
        if _plain(inp, num_out_tokens):
            moved, weights, rows = _permuted(inp, routing_map, probs, num_out_tokens)
            return moved, weights, rows
        return original(inp, probs, routing_map, num_out_tokens)

    return moe_permute_with_probs


def unpermute(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``moe_unpermute``: of maps made here."""

    @functools.wraps(original)
    def moe_unpermute(
        inp: Any,
        row_id_map: Any,
        merging_probs: Any = None,
        restore_shape: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if row_id_map.dim() == 3:
            if merging_probs is None:
                merging_probs = kwargs.get("probs")
            rows = row_id_map.squeeze(-1)
            return kernel(TOKEN_UNPERMUTE)(inp, rows, merging_probs, complete=True)
        return original(inp, row_id_map, merging_probs, restore_shape, *args, **kwargs)

    return moe_unpermute


def sort_chunks(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``moe_sort_chunks_by_index``."""

    @functools.wraps(original)
    def moe_sort_chunks_by_index(inp: Any, split_sizes: Any, sorted_index: Any) -> Any:
        if not _plain(inp, 1):
            return original(inp, split_sizes, sorted_index)
        return _sorted(inp, None, split_sizes, sorted_index)[0]

    return moe_sort_chunks_by_index


def sort_chunks_with_probs(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``moe_sort_chunks_by_index_with_probs``."""

    @functools.wraps(original)
    def moe_sort_chunks_by_index_with_probs(
        inp: Any, probs: Any, split_sizes: Any, sorted_index: Any
    ) -> Any:
        if not _plain(inp, 1):
            return original(inp, probs, split_sizes, sorted_index)
        return _sorted(inp, probs, split_sizes, sorted_index)

    return moe_sort_chunks_by_index_with_probs


def _plain(inp: Any, copies: Any) -> bool:
    """Whether it is rows of a plain tensor, whose number is known."""
    if type(inp) not in PLAIN or torch.compiler.is_compiling():
        return False
    return inp.shape[0] > 0 and inp.is_cuda and int(copies) > 0


def _permuted(inp: Any, routing_map: Any, probs: Any, copies: int) -> tuple[Any, Any, Any]:
    if inp.shape[0] != routing_map.shape[0]:
        raise ValueError(f"{inp.shape[0]} tokens, but a routing map of {routing_map.shape[0]}")
    served = kernel(TOKEN_PERMUTE)
    if served.is_reference:
        made = _Permute.apply(inp, routing_map, probs, int(copies))
        moved, weights, rows = made
    else:
        moved, weights, rows = served(inp, routing_map, probs, num_out_tokens=int(copies))
    return moved, weights, rows.unsqueeze(-1)


class _Index:
    """What is known about an index of chunks."""

    calls = 0
    in_order: bool | None = None


_INDICES: Final[TensorCache[_Index]] = TensorCache()


def _is_in_order(index: torch.Tensor) -> bool:
    """Whether the chunks stay where they are, as on one rank: then no row is copied.

    Reading an index waits for the device: only one that comes again is read, and only once.
    """
    if isinstance(index, FakeTensor):
        return False
    known = _INDICES.get((index,), None, _Index)
    known.calls += 1
    if known.in_order is None and known.calls > 1:
        if index.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        known.in_order = index.tolist() == list(range(len(index)))
    return bool(known.in_order)


def _sorted(inp: Any, probs: Any, split_sizes: Any, sorted_index: Any) -> tuple[Any, Any]:
    """Chunks of rows in another order.

    :param split_sizes: [c], integers: rows of each chunk.
    :param sorted_index: [c], integers: which chunk comes first, second, ...
    """
    if _is_in_order(sorted_index):
        return inp.view_as(inp), None if probs is None else probs.view_as(probs)
    sizes, order = split_sizes.long(), sorted_index.long()
    wanted = sizes.index_select(0, order)
    ends = wanted.cumsum(0)
    shifts = (sizes.cumsum(0) - sizes).index_select(0, order) - ends + wanted
    rows = torch.arange(inp.shape[0], device=inp.device)
    chunk = torch.searchsorted(ends, rows, right=True).clamp_(max=len(sizes) - 1)
    moved: tuple[Any, Any] = _Sort.apply(inp, probs, rows + shifts.index_select(0, chunk))
    return moved
