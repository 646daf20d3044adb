"""FP8 for several experts at once: one launch quantizes the rows of all.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton, on_device
from accel_bridge.backends.cuda.kernels._float8 import (
    BLOCK,
    EXPONENT,
    FORMATS,
    NUMBERS,
    PROGRAMS,
    rounded,
    scale_of,
    scales_of,
)
from accel_bridge.backends.cuda.kernels._groups import ends_of, tile_of, tiles_of, too_many
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two
from accel_bridge.backends.cuda.kernels.float8 import turn, without_float8
from accel_bridge.kernels.float8 import aligned, parts_of_transposed

#: Rows and columns of a tile that a program quantizes.
_TILE = (64, 256)
#: Loads of a program that looks for the largest magnitude.
_LOADS = 4


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
    transposed,
    scales,
    scale_stride,
    scale_inv,
    amaxes,
    amax_stride,
    found,
    parts,
    ends,
    aligned_ends,
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

    With CURRENT, scale_inv and amaxes come from ``found``, which has ``parts`` numbers an expert;
    otherwise ``amax = max(amax, |source|)`` with AMAX.

    :param aligned_ends: where the rows of each expert's transpose end.
    """
    expert, first, end, tile = tile_of(ends, tl.program_id(0), experts, ROWS, EXPERTS)
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
        times = scale_of(largest, epsilon, LARGEST, 3.4028234663852886e38, POWER_OF_2)
        if (tile == 0) & (tl.program_id(1) == 0):
            if AMAX:
                tl.store(amaxes + expert * amax_stride, largest)
            tl.store(scale_inv + expert, tl.div_rn(times * 0.0 + 1.0, times))
    else:
        times = tl.load(scales + expert * scale_stride)
        if AMAX:
            # Which program comes last does not matter: a maximum is exact.
            tl.atomic_max(amaxes + expert * amax_stride, tl.max(tl.max(tl.abs(values), 1), 0))
    values = values * times
    tl.store(target + place, rounded(values, LARGEST, FORMAT), mask=inside)
    if TURN:
        # What lies beyond the expert's rows was loaded as zeros.
        start = tl.load(aligned_ends + expert - 1, mask=expert > 0, other=0)
        rows = tl.load(aligned_ends + expert) - start
        inside = (column < k)[:, None] & (inner < rows)[None, :]
        numbers = rounded(tl.trans(values), LARGEST, FORMAT)
        corner = transposed + start.to(tl.int64) * k
        tl.store(corner + column[:, None] * rows + inner[None, :], numbers, mask=inside)


def grouped_float8_quantize(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    transposed: torch.Tensor | None = None,
    align_size: int = 1,
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
        scale_inv = make(experts, dtype=torch.float32, device=device)
    else:
        scale_inv = scale.reciprocal()
        if amax is not None:
            _forget(amax, splits)
    if not target.numel():
        return target, scale_inv
    ends = ends_of(splits, device)
    found, parts = scale_inv, 1
    if current:
        parts = min(PROGRAMS, blocks(max(splits) * k, _LOADS * NUMBERS))
        found = torch.empty(experts * parts, dtype=torch.int32, device=device)
        _largest_of_groups[(parts, experts)](
            source, found, ends, k, parts, SIZE=NUMBERS, num_warps=8
        )
    rows, columns = _TILE
    longer = splits if transposed is None else aligned(splits, align_size)
    turns = transposed is not None and source.dtype != torch.float32
    _quantize_groups[(tiles_of(splits, rows), blocks(k, columns))](
        source,
        target,
        target if transposed is None else transposed,
        scale_inv if scale is None else scale,
        0 if scale is None else scale.stride(0),
        scale_inv,
        scale_inv if amax is None else amax,
        0 if amax is None else amax.stride(0),
        found,
        parts,
        ends,
        ends_of(longer, device),
        experts,
        k,
        epsilon,
        **FORMATS[dtype],
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
    if transposed is not None and not turns:
        transposed.view(torch.uint8).zero_()
        for part, numbers in zip(
            parts_of_transposed(transposed, longer, k), target.split(list(splits)), strict=True
        ):
            turn(numbers, part)
    return target, scale_inv


def _forget(amax: torch.Tensor, splits: Sequence[int]) -> None:
    """Zeros where rows will be looked at; experts without rows keep what they have."""
    if all(splits):
        amax.zero_()
        return
    busy = on_device(tuple(int(rows > 0) for rows in splits), torch.float32, amax.device)
    # Not a GEMM: a largest magnitude may be infinite.
    amax.masked_fill_(busy > 0, 0.0)


@Quick
@triton.jit(do_not_specialize=["experts", "epsilon", "kept"])
def _turn_blocks(
    source,
    target,
    scale_inv,
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
    _, first, end, tile = tile_of(ends, block, experts, BLOCK, EXPERTS)
    inner = tile * BLOCK + tl.arange(0, BLOCK)
    row = (first + inner).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < end)[:, None] & (column < k)[None, :]
    place = row[:, None] * k + column[None, :]
    values = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    amax = tl.max(tl.abs(values), 0)
    scale = scales_of(amax, epsilon, kept, LARGEST, INFINITE, COLUMNS)
    rows = end - first
    numbers = rounded(tl.trans(values * scale[None, :]), LARGEST, FORMAT)
    corner = target + first.to(tl.int64) * k
    inside = (column < k)[:, None] & (inner < rows)[None, :]
    tl.store(corner + column[:, None] * rows + inner[None, :], numbers, mask=inside)
    factor = tl.div_rn(tl.full((COLUMNS,), 1.0, tl.float32), scale)
    tl.store(scale_inv + block.to(tl.int64) * k + column, factor, mask=column < k)


def grouped_float8_block_transpose(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``grouped_float8_block_transpose``."""
    source = input.detach().contiguous()
    (t, k), device = source.shape, source.device
    if sum(splits) != t:
        raise ValueError(f"counts {list(splits)} for {t} rows")
    down = tiles_of(splits, BLOCK)
    target = torch.empty(t * k, dtype=dtype, device=device)
    scale_inv = torch.empty(down, k, dtype=torch.float32, device=device)
    if target.numel():
        _turn_blocks[(down, blocks(k, 64))](
            source,
            target,
            scale_inv,
            ends_of(splits, device),
            len(splits),
            k,
            epsilon,
            EXPONENT if power_of_2 else -1,
            **FORMATS[dtype],
            INFINITE=torch.finfo(input.dtype).max,
            BLOCK=BLOCK,
            COLUMNS=64,
            EXPERTS=power_of_two(len(splits)),
            num_warps=8,
        )
    return target, scale_inv


def supports(
    input: torch.Tensor, splits: Sequence[int], *_: object, align_size: int = 1, **__: object
) -> str | None:
    """Where this module's kernels apply."""
    if _TILE[0] % align_size:  # an expert's last tile writes the zeros after its rows
        return f"transposes aligned to {align_size} rows"
    return without_float8(input.device) or not_for_triton(input) or too_many(splits)
