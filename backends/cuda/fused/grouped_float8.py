"""FP8 for several experts at once: one launch quantizes the rows of all, one multiplies them.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.fused._launch import blocks, power_of_two
from accel_bridge.backends.cuda.fused._numbers import on_device
from accel_bridge.backends.cuda.fused._quick import Quick
from accel_bridge.backends.cuda.fused.float8 import (
    _BLOCK,
    _EXPONENT,
    _FORMATS,
    _NUMBERS,
    _PROGRAMS,
    _rounded,
    _scale_of,
    turn,
)
from accel_bridge.kernels.grouped_float8 import parts_of_turned

#: Rows and columns of a tile that a program quantizes.
_TILE = (64, 256)
#: Loads of a program that looks for the largest magnitude.
_LOADS = 4


def _ends(splits: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where each expert's rows end [e]."""
    return on_device(tuple(accumulate(splits)), torch.int32, device)


def _tiles(splits: Sequence[int], size: int) -> int:
    """Tiles of ``size`` rows, none of which has rows of two experts."""
    return sum(blocks(rows, size) for rows in splits)


@triton.jit
def _tile_of(ends, tile, experts, SIZE: tl.constexpr, EXPERTS: tl.constexpr):
    """(expert, its first row, its end, the tile's number among the expert's)."""
    place = tl.arange(0, EXPERTS)
    known = place < experts
    end = tl.load(ends + place, mask=known, other=0)
    start = tl.load(ends + place - 1, mask=known & (place > 0), other=0)
    done = tl.cumsum(tl.where(known, (end - start + SIZE - 1) // SIZE, 0), 0)
    before = done <= tile
    expert = tl.sum(before.to(tl.int32), 0)
    first = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    return expert, first, tl.load(ends + expert), tile - tl.max(tl.where(before, done, 0), 0)


@Quick
@triton.jit(do_not_specialize=["parts"])
def _largest_of_groups(source, found, ends, k, parts, SIZE: tl.constexpr):
    """The bits of the largest magnitude of each part of each expert's rows."""
    expert = tl.program_id(1)
    first = tl.load(ends + expert - 1, mask=expert > 0, other=0).to(tl.int64) * k
    end = tl.load(ends + expert).to(tl.int64) * k
    first = tl.multiple_of(first, 8)
    best = tl.zeros((SIZE,), tl.int32)
    for start in range(first + tl.program_id(0) * SIZE, end, parts * SIZE):
        place = start + tl.arange(0, SIZE)
        values = tl.load(source + place, mask=place < end, other=0.0).to(tl.float32)
        best = tl.maximum(best, values.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(found + expert * parts + tl.program_id(0), tl.max(best, 0))


@Quick
@triton.jit(do_not_specialize=["parts", "epsilon", "experts"])
def _quantize_groups(
    source,
    target,
    turned,
    scales,
    scale_stride,
    factors,
    amaxes,
    amax_stride,
    found,
    parts,
    ends,
    experts,
    k,
    epsilon,
    LARGEST: tl.constexpr,
    FORMAT: tl.constexpr,
    POWER_OF_2: tl.constexpr,
    CURRENT: tl.constexpr,
    FOUND: tl.constexpr,
    AMAX: tl.constexpr,
    TURN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """target = round(source * the expert's scale), and its transpose.

    With CURRENT, factors and amaxes come from ``found``, which has ``parts`` numbers an expert;
    otherwise ``amax = max(amax, |source|)`` with AMAX.
    """
    expert, first, end, tile = _tile_of(ends, tl.program_id(0), experts, ROWS, EXPERTS)
    inner = tile * ROWS + tl.arange(0, ROWS)
    row = (first + inner).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < end)[:, None] & (column < k)[None, :]
    place = row[:, None] * k + column[None, :]
    values = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    if CURRENT:
        part = tl.arange(0, FOUND)
        bits = tl.max(tl.load(found + expert * parts + part, mask=part < parts, other=0), 0)
        largest = bits.to(tl.float32, bitcast=True)
        times = _scale_of(largest, epsilon, LARGEST, 3.4028234663852886e38, POWER_OF_2)
        if (tile == 0) & (tl.program_id(1) == 0):
            if AMAX:
                tl.store(amaxes + expert * amax_stride, largest)
            tl.store(factors + expert, tl.div_rn(times * 0.0 + 1.0, times))
    else:
        times = tl.load(scales + expert * scale_stride)
        if AMAX:
            # Which program comes last does not matter: a maximum is exact.
            tl.atomic_max(amaxes + expert * amax_stride, tl.max(tl.max(tl.abs(values), 1), 0))
    values = values * times
    tl.store(target + place, _rounded(values, LARGEST, FORMAT), mask=inside)
    if TURN:
        rows = end - first
        inside = (column < k)[:, None] & (inner < rows)[None, :]
        numbers = _rounded(tl.trans(values), LARGEST, FORMAT)
        corner = turned + first.to(tl.int64) * k
        tl.store(corner + column[:, None] * rows + inner[None, :], numbers, mask=inside)


def grouped_quantize(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    turned: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``grouped_float8_quantize``."""
    source = input.detach().contiguous()
    experts, (t, k), device = len(splits), source.shape, source.device
    if sum(splits) != t:
        raise ValueError(f"counts {list(splits)} for {t} rows")
    target = torch.empty(t, k, dtype=dtype, device=device)
    current = scale is None
    if scale is None:
        # Those of experts without rows are not written.
        make = torch.empty if all(splits) else torch.ones
        factors = make(experts, dtype=torch.float32, device=device)
    else:
        factors = scale.reciprocal()
        if amax is not None:
            _forget(amax, splits)
    if not target.numel():
        return target, factors
    ends = _ends(splits, device)
    found, parts = factors, 1
    if current:
        parts = min(_PROGRAMS, blocks(max(splits) * k, _LOADS * _NUMBERS))
        found = torch.empty(experts * parts, dtype=torch.int32, device=device)
        _largest_of_groups[(parts, experts)](
            source, found, ends, k, parts, SIZE=_NUMBERS, num_warps=8
        )
    rows, columns = _TILE
    turns = turned is not None and source.dtype != torch.float32
    _quantize_groups[(_tiles(splits, rows), blocks(k, columns))](
        source,
        target,
        target if turned is None else turned,
        factors if scale is None else scale,
        0 if scale is None else scale.stride(0),
        factors,
        factors if amax is None else amax,
        0 if amax is None else amax.stride(0),
        found,
        parts,
        ends,
        experts,
        k,
        epsilon,
        **_FORMATS[dtype],
        POWER_OF_2=power_of_2,
        CURRENT=current,
        FOUND=power_of_two(parts),
        AMAX=amax is not None,
        TURN=turns,
        ROWS=rows,
        COLUMNS=columns,
        EXPERTS=power_of_two(experts),
        num_warps=8,
    )
    if turned is not None and not turns:
        for part, numbers in zip(
            parts_of_turned(turned, splits, k), target.split(list(splits)), strict=True
        ):
            turn(numbers, part)
    return target, factors


def _forget(amax: torch.Tensor, splits: Sequence[int]) -> None:
    """Zeros where rows will be looked at; experts without rows keep what they have."""
    if all(splits):
        amax.zero_()
        return
    busy = on_device(tuple(int(rows > 0) for rows in splits), torch.float32, amax.device)
    # Not a product: a largest magnitude may be infinite.
    amax.masked_fill_(busy > 0, 0.0)


@Quick
@triton.jit(do_not_specialize=["experts", "epsilon", "kept"])
def _turn_blocks(
    source,
    target,
    factors,
    ends,
    experts,
    k,
    epsilon,
    kept,
    LARGEST: tl.constexpr,
    INFINITE: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """The transpose of one block of rows, a factor for each column.

    :param kept: bits of a scale that are kept.
    """
    block = tl.program_id(0)
    _, first, end, tile = _tile_of(ends, block, experts, BLOCK, EXPERTS)
    inner = tile * BLOCK + tl.arange(0, BLOCK)
    row = (first + inner).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < end)[:, None] & (column < k)[None, :]
    place = row[:, None] * k + column[None, :]
    values = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    amax = tl.max(tl.abs(values), 0)
    known = (amax == amax) & (amax < float("inf"))
    amax = tl.maximum(amax, epsilon)
    known = known & (amax > 0.0)
    scale = tl.div_rn(tl.full((COLUMNS,), LARGEST, tl.float32), tl.where(known, amax, 1.0))
    scale = tl.where(scale > INFINITE, INFINITE, scale)
    scale = (scale.to(tl.int32, bitcast=True) & kept).to(tl.float32, bitcast=True)
    scale = tl.where(known, scale, 1.0)
    rows = end - first
    numbers = _rounded(tl.trans(values * scale[None, :]), LARGEST, FORMAT)
    corner = target + first.to(tl.int64) * k
    inside = (column < k)[:, None] & (inner < rows)[None, :]
    tl.store(corner + column[:, None] * rows + inner[None, :], numbers, mask=inside)
    factor = tl.div_rn(tl.full((COLUMNS,), 1.0, tl.float32), scale)
    tl.store(factors + block.to(tl.int64) * k + column, factor, mask=column < k)


def grouped_block_turn(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``grouped_float8_block_turn``."""
    source = input.detach().contiguous()
    (t, k), device = source.shape, source.device
    if sum(splits) != t:
        raise ValueError(f"counts {list(splits)} for {t} rows")
    down = _tiles(splits, _BLOCK)
    target = torch.empty(t * k, dtype=dtype, device=device)
    factors = torch.empty(down, k, dtype=torch.float32, device=device)
    if target.numel():
        _turn_blocks[(down, blocks(k, 64))](
            source,
            target,
            factors,
            _ends(splits, device),
            len(splits),
            k,
            epsilon,
            _EXPONENT if power_of_2 else -1,
            **_FORMATS[dtype],
            INFINITE=torch.finfo(input.dtype).max,
            BLOCK=_BLOCK,
            COLUMNS=64,
            EXPERTS=power_of_two(len(splits)),
            num_warps=8,
        )
    return target, factors


#: Rows and columns of a product's tile, numbers summed at once, and tiles of rows that share the
#: weight in the cache.
_FAST = {"TILE_T": 128, "TILE_M": 128, "TILE_K": 128, "GROUP": 8}
#: Likewise where sums are kept in float32: those beside the tensor cores' take as many registers.
_PRECISE = {"TILE_T": 256, "TILE_M": 128, "TILE_K": 128, "GROUP": 8}
#: Likewise of a weight gradient: rows and columns of the sums, rows of experts.
_GRADIENT = {"TILE_M": 128, "TILE_K": 128, "ROWS": 128, "GROUP": 8}


@Quick
@triton.jit(do_not_specialize=["experts", "high"])
def _products(
    a,
    b,
    a_factors,
    b_factors,
    output,
    ends,
    experts,
    high,
    m,
    k,
    across,
    PRECISE: tl.constexpr,
    BY_BLOCK: tl.constexpr,
    TILE_T: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    """One tile of one expert's rows with one tile of its weight.

    :param a: descriptor of [t, k]; :param b: of [e * m, k].
    :param high: tiles of rows of all experts.
    :param across: tiles of a row.
    """
    # Neighbours in time read the same rows of the weight.
    width = GROUP * across
    top = tl.program_id(0) // width * GROUP
    tall = tl.minimum(high - top, GROUP)
    inner = tl.program_id(0) % width
    expert, first, end, tile = _tile_of(ends, top + inner % tall, experts, TILE_T, EXPERTS)
    corner = first + tile * TILE_T
    side = inner // tall * TILE_M
    row = corner + tl.arange(0, TILE_T)
    total = tl.zeros((TILE_T, TILE_M), tl.float32)
    down = tl.cdiv(k, TILE_K)
    # A tile is as wide as a block of the weight: it has one factor.
    x_factors = a_factors + tl.minimum(row, end - 1).to(tl.int64) * down
    weight_factors = b_factors + (expert * across + inner // tall) * down
    for block in range(down):
        # What is read beyond an edge, of another expert, is not written.
        x = a.load([corner, block * TILE_K])
        weight = b.load([expert * m + side, block * TILE_K])
        if BY_BLOCK:
            factor = tl.load(x_factors + block) * tl.load(weight_factors + block)
            total += tl.dot(x, weight.T) * factor[:, None]
        elif PRECISE:
            # Tensor cores keep fewer bits of their sums than float32 has.
            total = tl.dot(x, weight.T, total, max_num_imprecise_acc=TILE_K)
        else:
            total = tl.dot(x, weight.T, total)
    if not BY_BLOCK:
        total *= tl.load(a_factors + expert) * tl.load(b_factors + expert)
    column = side + tl.arange(0, TILE_M)
    place = row.to(tl.int64)[:, None] * m + column[None, :]
    inside = (row < end)[:, None] & (column < m)[None, :]
    tl.store(output + place, total.to(output.dtype.element_ty), mask=inside)


def grouped_scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_factors: torch.Tensor,
    b_factors: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    precise: bool = True,
) -> torch.Tensor:
    """The contract ``grouped_scaled_matmul`` for a k that is a multiple of 16."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    (t, k), (experts, m, _) = a.shape, b.shape
    if sum(splits) != t:
        raise ValueError(f"counts {list(splits)} for {t} rows")
    output = torch.empty(t, m, dtype=dtype, device=a.device)
    if not output.numel():
        return output
    by_block = a_factors.dim() > 1
    tile = _PRECISE if precise and not by_block else _FAST
    high, across = _tiles(splits, tile["TILE_T"]), blocks(m, tile["TILE_M"])
    _products[(high * across,)](
        TensorDescriptor.from_tensor(a.contiguous(), [tile["TILE_T"], tile["TILE_K"]]),
        TensorDescriptor.from_tensor(b.reshape(-1, k), [tile["TILE_M"], tile["TILE_K"]]),
        a_factors.contiguous(),
        b_factors.contiguous(),
        output,
        _ends(splits, a.device),
        experts,
        high,
        m,
        k,
        across,
        PRECISE=precise,
        BY_BLOCK=by_block,
        **tile,
        EXPERTS=power_of_two(experts),
        num_warps=8 if precise or by_block else 4,
        num_stages=3 if tile is _PRECISE else 4,
    )
    return output


@Quick
@triton.jit
def _add_scaled_products(
    gradient,
    input,
    gradient_factors,
    input_factors,
    sums,
    places,
    ends,
    block_ends,
    m,
    k,
    across,
    tiles,
    BY_BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one expert's sums [m, k].

    :param block_ends: where each expert's blocks of ROWS rows end.
    """
    expert, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    # Neighbours in time read the same numbers of the operands.
    width = GROUP * across
    first = tile // width * GROUP
    high = tl.minimum(tiles // across - first, GROUP)
    row = (first + tile % width % high) * TILE_M + tl.arange(0, TILE_M)
    column = tile % width // high * TILE_K + tl.arange(0, TILE_K)
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    rows = tl.load(ends + expert) - start
    if ALIGNED:
        start = tl.multiple_of(start, 16)
        rows = tl.multiple_of(rows, 16)
    step = tl.arange(0, ROWS)
    # What is read beyond an edge is not written.
    safe_row = tl.minimum(row, m - 1).to(tl.int64)
    safe_column = tl.minimum(column, k - 1).to(tl.int64)
    left = gradient + start.to(tl.int64) * m + safe_row[:, None] * rows + step[None, :]
    right = input + start.to(tl.int64) * k + safe_column[None, :] * rows + step[:, None]
    total = tl.zeros((TILE_M, TILE_K), tl.float32)
    block = tl.load(block_ends + expert - 1, mask=expert > 0, other=0)
    for place in range(0, rows, ROWS):
        x = tl.load(left, mask=(place + step < rows)[None, :], other=0.0)
        y = tl.load(right, mask=(place + step < rows)[:, None], other=0.0)
        if BY_BLOCK:
            u = tl.load(gradient_factors + block.to(tl.int64) * m + safe_row)
            s = tl.load(input_factors + block.to(tl.int64) * k + safe_column)
            total += tl.dot(x, y) * u[:, None] * s[None, :]
            block += 1
        else:
            # Tensor cores keep fewer bits of their sums than float32 has.
            total += tl.dot(x, y)
        left += ROWS
        right += ROWS
    if not BY_BLOCK:
        total *= tl.load(gradient_factors + expert) * tl.load(input_factors + expert)
    target = sums + tl.multiple_of(tl.load(places + expert), 4)
    target += row.to(tl.int64)[:, None] * k + column[None, :]
    inside = (row < m)[:, None] & (column < k)[None, :]
    tl.store(target, tl.load(target, mask=inside, other=0.0) + total, mask=inside)


def grouped_scaled_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    input_factors: torch.Tensor,
    grad_factors: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    sizes: tuple[int, int],
) -> None:
    """The contract ``grouped_scaled_weight_gradient`` for a float32 main_grad."""
    k, m = sizes
    across = blocks(k, _GRADIENT["TILE_K"])
    tiles = across * blocks(m, _GRADIENT["TILE_M"])
    if not (tiles and sum(splits)):
        return
    device, rows = input.device, _GRADIENT["ROWS"]
    _add_scaled_products[(len(splits) * tiles,)](
        grad_output,
        input,
        grad_factors.contiguous(),
        input_factors.contiguous(),
        main_grad,
        on_device(tuple(places), torch.int64, device),
        _ends(splits, device),
        _ends([blocks(count, rows) for count in splits], device),
        m,
        k,
        across,
        tiles,
        BY_BLOCK=input_factors.dim() > 1,
        ALIGNED=all(count % 16 == 0 for count in splits),
        **_GRADIENT,
        num_warps=8,
        num_stages=4,
    )
