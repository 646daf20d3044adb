"""Tokens to their experts and back: each token is read or written once.

Legend: t tokens, e experts, h hidden size, m rows of copies.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two, warps

#: Numbers of a token that a program holds.
_BLOCK = 2048
#: Entries of the map that a program holds while it counts.
_ENTRIES = 8192
#: Blocks of counts that are summed at once.
_COUNTS = 16
#: Experts whose rows a program holds at once.
_EXPERTS = 1024


@Quick
@triton.jit
def _count(
    routed,
    counts,
    t,
    e,
    stride_t,
    stride_e,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """The copies of each expert among a block of tokens: counts [blocks, e]."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, EXPERTS)
    inside = (token < t)[:, None] & (expert < e)[None, :]
    place = token[:, None] * stride_t + expert[None, :] * stride_e
    found = (tl.load(routed + place, mask=inside, other=0) != 0).to(tl.int32)
    tl.store(counts + tl.program_id(0) * e + expert, tl.sum(found, 0), mask=expert < e)


@Quick
@triton.jit
def _place(
    routed,
    counts,
    offsets,
    rows,
    t,
    e,
    copies,
    number,
    stride_t,
    stride_e,
    PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """The row of each copy, behind those of earlier experts and tokens, and behind padding."""
    expert = tl.arange(0, EXPERTS)
    total = tl.zeros((EXPERTS,), tl.int32)
    before = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, number, COUNTS):
        block = first + tl.arange(0, COUNTS)
        inside = (block < number)[:, None] & (expert < e)[None, :]
        held = tl.load(counts + block[:, None] * e + expert[None, :], mask=inside, other=0)
        total += tl.sum(held, 0)
        before += tl.sum(tl.where((block < tl.program_id(0))[:, None], held, 0), 0)
    start = tl.cumsum(total, 0) - total + before
    if PADDED:
        start += tl.load(offsets + expert, mask=expert < e, other=0).to(tl.int32)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    inside = (token < t)[:, None] & (expert < e)[None, :]
    place = token[:, None] * stride_t + expert[None, :] * stride_e
    found = (tl.load(routed + place, mask=inside, other=0) != 0).to(tl.int32)
    row = start[None, :] + tl.cumsum(found, 0) - found
    row = tl.where((found != 0) & (row < copies), row, -1)
    tl.store(rows + token[:, None] * e + expert[None, :], row, mask=inside)


@Quick
@triton.jit
def _spread(
    tokens,
    rows,
    probs,
    copies,
    weights,
    h,
    e,
    WEIGHTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """copies[rows[i, j]] = tokens[i]; weights[rows[i, j]] = probs[i, j]."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    row = tl.load(rows + token * e + expert, mask=expert < e, other=-1)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(tokens + token * h + place, mask=place < h, other=0.0)
    if WEIGHTS:
        first = (row >= 0) & (tl.program_id(1) == 0)
        weight = tl.load(probs + token * e + expert, mask=first, other=0.0)
        tl.store(weights + row, weight, mask=first)
    for _ in range(tl.sum((row >= 0).to(tl.int32), 0)):
        # The first expert that is left: what is done is marked by -1.
        here = expert == tl.min(tl.where(row >= 0, expert, EXPERTS), 0)
        target = tl.sum(tl.where(here, row, 0), 0).to(tl.int64)
        tl.store(copies + target * h + place, value, mask=place < h)
        row = tl.where(here, -1, row)


@Quick
@triton.jit
def _merge(
    copies,
    rows,
    weights,
    tokens,
    given,
    probs,
    h,
    e,
    WEIGHTED: tl.constexpr,
    PROBS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """tokens[i] = sum of weights[i, j] * copies[rows[i, j]]; probs[i, j] = given[rows[i, j]]."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    row = tl.load(rows + token * e + expert, mask=expert < e, other=-1)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PROBS:
        first = (expert < e) & (tl.program_id(1) == 0)
        found = tl.load(given + row, mask=first & (row >= 0), other=0.0)
        tl.store(probs + token * e + expert, found, mask=first)
    if WEIGHTED:
        weight = tl.load(weights + token * e + expert, mask=row >= 0, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(tl.sum((row >= 0).to(tl.int32), 0)):
        here = expert == tl.min(tl.where(row >= 0, expert, EXPERTS), 0)
        source = tl.sum(tl.where(here, row, 0), 0).to(tl.int64)
        value = tl.load(copies + source * h + place, mask=place < h, other=0.0).to(tl.float32)
        if WEIGHTED:
            value = value * tl.sum(tl.where(here, weight, 0.0), 0)
        total += value
        row = tl.where(here, -1, row)
    tl.store(tokens + token * h + place, total.to(tokens.dtype.element_ty), mask=place < h)


@Quick
@triton.jit
def _merge_backward(
    gradient,
    rows,
    weights,
    copies,
    of_copies,
    of_weights,
    h,
    e,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """of_copies[rows[i, j]] = weights[i, j] * gradient[i]; of_weights[i, j] = their dot product."""
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    row = tl.load(rows + token * e + expert, mask=expert < e, other=-1)
    weight = tl.load(weights + token * e + expert, mask=row >= 0, other=0.0).to(tl.float32)
    dots = tl.zeros((EXPERTS,), tl.float32)
    for _ in range(tl.sum((row >= 0).to(tl.int32), 0)):
        here = expert == tl.min(tl.where(row >= 0, expert, EXPERTS), 0)
        target = tl.sum(tl.where(here, row, 0), 0).to(tl.int64)
        factor = tl.sum(tl.where(here, weight, 0.0), 0)
        dot = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, h, BLOCK):
            place = first + tl.arange(0, BLOCK)
            inside = place < h
            of_token = tl.load(gradient + token * h + place, mask=inside, other=0.0)
            of_token = of_token.to(tl.float32)
            copy = tl.load(copies + target * h + place, mask=inside, other=0.0).to(tl.float32)
            dot += of_token * copy
            scaled = (of_token * factor).to(of_copies.dtype.element_ty)
            tl.store(of_copies + target * h + place, scaled, mask=inside)
        dots = tl.where(here, tl.sum(dot, 0), dots)
        row = tl.where(here, -1, row)
    of_weights += token * e + expert
    tl.store(of_weights, dots.to(of_weights.dtype.element_ty), mask=expert < e)


def _rows(routing_map: torch.Tensor, copies: int, pad_offsets: torch.Tensor | None) -> torch.Tensor:
    """The row of each token's copy for each expert: int32 [t, e]."""
    t, e = routing_map.shape
    routed = routing_map.view(torch.uint8) if routing_map.dtype == torch.bool else routing_map
    device = routed.device
    experts = power_of_two(e)
    tokens = max(16, min(power_of_two(max(t, 1)), _ENTRIES // experts))
    number = blocks(t, tokens)
    counts = torch.empty(number, e, dtype=torch.int32, device=device)
    rows = torch.empty(t, e, dtype=torch.int32, device=device)
    if rows.numel():
        sizes = {"TOKENS": tokens, "EXPERTS": experts, "num_warps": 8}
        _count[(number,)](routed, counts, t, e, *routed.stride(), **sizes)
        _place[(number,)](
            routed,
            counts,
            counts if pad_offsets is None else pad_offsets,
            rows,
            t,
            e,
            copies,
            number,
            *routed.stride(),
            PADDED=pad_offsets is not None,
            COUNTS=_COUNTS,
            **sizes,
        )
    return rows


def _sizes(h: int, e: int) -> dict[str, int]:
    """Block sizes of a kernel that has a program for each token."""
    block = min(_BLOCK, power_of_two(h))
    return {"EXPERTS": power_of_two(e), "BLOCK": block, "num_warps": max(1, min(8, warps(block)))}


def _merged(
    copies: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
    given: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tokens' sums [t, h], and ``given`` [m] by token and expert [t, e]."""
    (t, e), h = rows.shape, copies.shape[1]
    tokens = copies.new_empty(t, h)
    probs = None if given is None else given.new_empty(t, e)
    if tokens.numel():
        sizes = _sizes(h, e)
        _merge[(t, blocks(h, sizes["BLOCK"]))](
            copies.contiguous(),
            rows,
            copies if weights is None else weights.contiguous(),
            tokens,
            copies if given is None else given.contiguous(),
            copies if probs is None else probs,
            h,
            e,
            WEIGHTED=weights is not None,
            PROBS=given is not None,
            **sizes,
        )
    elif probs is not None:
        probs.zero_()
    return tokens, probs


class _Permute(torch.autograd.Function):
    """tokens [t, h], probs [t, e] or None -> copies [m, h], weights [m] or None, rows [t, e]."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: torch.Tensor,
        probs: torch.Tensor | None,
        routing_map: torch.Tensor,
        m: int,
        pad_offsets: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        rows = _rows(routing_map, m, pad_offsets)
        (t, e), h = rows.shape, tokens.shape[1]
        make = torch.empty if pad_offsets is None else torch.zeros
        copies = make(m, h, dtype=tokens.dtype, device=tokens.device)
        weights = None
        if probs is not None:
            weights = make(m, dtype=probs.dtype, device=probs.device)
        if tokens.numel():
            sizes = _sizes(h, e)
            _spread[(t, blocks(h, sizes["BLOCK"]))](
                tokens.contiguous(),
                rows,
                tokens if probs is None else probs.contiguous(),
                copies,
                copies if weights is None else weights,
                h,
                e,
                WEIGHTS=weights is not None,
                **sizes,
            )
        ctx.save_for_backward(rows)
        ctx.mark_non_differentiable(rows)
        return copies, weights, rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (rows,) = ctx.saved_tensors
        given = gradients[1] if ctx.needs_input_grad[1] else None
        tokens, probs = _merged(gradients[0], rows, given=given)
        return tokens, probs, None, None, None


class _Unpermute(torch.autograd.Function):
    """copies [m, h], weights [t, e] or None -> tokens [t, h]."""

    @staticmethod
    def forward(
        ctx: Any,
        copies: torch.Tensor,
        rows: torch.Tensor,
        weights: torch.Tensor | None,
        complete: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(rows, None if weights is None else copies, weights)
        ctx.m, ctx.complete = copies.shape[0], complete
        return _merged(copies, rows, weights)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, copies, weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        (t, e), h = rows.shape, gradient.shape[1]
        make = torch.empty if ctx.complete else torch.zeros
        of_copies = make(ctx.m, h, dtype=gradient.dtype, device=gradient.device)
        of_weights = None if weights is None else torch.zeros_like(weights)
        if gradient.numel():
            sizes = _sizes(h, e)
            if weights is None:
                _spread[(t, blocks(h, sizes["BLOCK"]))](
                    gradient,
                    rows,
                    gradient,
                    of_copies,
                    of_copies,
                    h,
                    e,
                    WEIGHTS=False,
                    **sizes,
                )
            else:
                _merge_backward[(t,)](
                    gradient,
                    rows,
                    weights.contiguous(),
                    copies.contiguous(),
                    of_copies,
                    of_weights,
                    h,
                    e,
                    **sizes,
                )
        return of_copies, None, of_weights, None


def token_permute(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None = None,
    *,
    num_out_tokens: int,
    pad_offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The contract ``token_permute``."""
    copies, weights, rows = _Permute.apply(tokens, probs, routing_map, num_out_tokens, pad_offsets)
    return copies, weights, rows


def token_unpermute(
    permuted: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    complete: bool = False,
) -> torch.Tensor:
    """The contract ``token_unpermute``."""
    output: torch.Tensor = _Unpermute.apply(permuted, rows, weights, complete)
    return output


def permute_supports(
    tokens: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor | None = None, **_: object
) -> str | None:
    """Where :func:`token_permute` applies."""
    return _too_many(routing_map.shape[1]) or not_for_triton(tokens, probs)


def unpermute_supports(
    permuted: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor | None = None, **_: object
) -> str | None:
    """Where :func:`token_unpermute` applies."""
    return _too_many(rows.shape[1]) or not_for_triton(permuted, weights)


def _too_many(experts: int) -> str | None:
    return f"{experts} experts" if experts > _EXPERTS else None
