"""FP8: quantizing in one pass.

Legend: m rows, n columns, k the size that a GEMM sums over.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import capability, not_for_triton
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
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two
from accel_bridge.kernels import FLOAT8_CURRENT_QUANTIZE

#: The first compute capability with FP8 arithmetic.
_FIRST = (8, 9)
#: Rows and columns of a tile that a program quantizes; 90% of a copy's speed on an H200, where
#: tiles of 64 x 128 took 292 us for 8192 x 28672 and these 250.
_TILE = (32, 512)
#: Rows that a program quantizes when each has blocks of its own.
_ROWS = 32


@Quick
@triton.jit
def _largest(source, found, count, SIZE: tl.constexpr):
    """The bits of the largest magnitude of each program's part: NaN is larger than infinity."""
    best = tl.zeros((SIZE,), tl.int32)
    for first in range(tl.program_id(0).to(tl.int64) * SIZE, count, tl.num_programs(0) * SIZE):
        place = first + tl.arange(0, SIZE)
        values = tl.load(source + place, mask=place < count, other=0.0).to(tl.float32)
        best = tl.maximum(best, values.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(found + tl.program_id(0), tl.max(best, 0))


@Quick
@triton.jit
def _quantize(
    source,
    target,
    transposed,
    scale,
    amax,
    found,
    number,
    m,
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
):
    """target = round(source * scale), and its transpose.

    With CURRENT, the scale comes from ``found``, and ``scale`` becomes its reciprocal; otherwise
    ``amax = max(amax, |source|)`` with AMAX.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < m)[:, None] & (column < k)[None, :]
    place = row[:, None] * k + column[None, :]
    values = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    if CURRENT:
        part = tl.arange(0, FOUND)
        bits = tl.max(tl.load(found + part, mask=part < number, other=0), 0)
        largest = bits.to(tl.float32, bitcast=True)
        times = scale_of(largest, epsilon, LARGEST, 3.4028234663852886e38, POWER_OF_2)
        if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
            tl.store(scale, tl.div_rn(times * 0.0 + 1.0, times))
    else:
        times = tl.load(scale)
        if AMAX:
            # Which program comes last does not matter: a maximum is exact.
            tl.atomic_max(amax, tl.max(tl.max(tl.abs(values), 1), 0))
    values = values * times
    tl.store(target + place, rounded(values, LARGEST, FORMAT), mask=inside)
    if TURN:
        inside = (column < k)[:, None] & (row < m)[None, :]
        numbers = rounded(tl.trans(values), LARGEST, FORMAT)
        tl.store(transposed + column[:, None] * m + row[None, :], numbers, mask=inside)


def turn(numbers: torch.Tensor, transposed: torch.Tensor) -> None:
    """The transpose of FP8 numbers [.., k] into ``transposed`` [k, ..].

    Triton 3.6 turns tiles that were float32 wrongly on a GPU, before and after they are rounded.
    """
    k = numbers.shape[-1] if numbers.dim() else 1
    flat = numbers.view(torch.uint8).view(-1, k)
    transposed.view(torch.uint8).view(k, -1)[:, : len(flat)] = flat.t()


def _launch(
    source: torch.Tensor,
    dtype: torch.dtype,
    transposed: torch.Tensor | None,
    scale: torch.Tensor,
    amax: torch.Tensor | None = None,
    current: bool = False,
    power_of_2: bool = False,
    epsilon: float = 0.0,
) -> torch.Tensor:
    """Numbers of a contiguous source.

    :param current: take the source's own scale, and leave its reciprocal in ``scale``.
    """
    target = torch.empty(source.shape, dtype=dtype, device=source.device)
    k = source.shape[-1] if source.dim() else 1
    m = source.numel() // k
    found, number = scale, 0
    if current:
        number = min(PROGRAMS, blocks(source.numel(), NUMBERS))
        found = torch.empty(number, dtype=torch.int32, device=source.device)
        _largest[(number,)](source, found, source.numel(), SIZE=NUMBERS, num_warps=8)
    rows, columns = _TILE
    turns = transposed is not None and source.dtype != torch.float32
    _quantize[(blocks(m, rows), blocks(k, columns))](
        source,
        target,
        target if transposed is None else transposed,
        scale,
        scale if amax is None else amax,
        found,
        number,
        m,
        k,
        epsilon,
        **FORMATS[dtype],
        POWER_OF_2=power_of_2,
        CURRENT=current,
        FOUND=power_of_two(max(number, 1)),
        AMAX=amax is not None,
        TURN=turns,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=8,
    )
    if transposed is not None and not turns:
        turn(target, transposed)
    return target


def float8_quantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype,
    amax: torch.Tensor | None = None,
    transposed: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract ``float8_quantize``."""
    source = input.detach().contiguous()
    if amax is not None:
        amax.zero_()
    if not source.numel():
        return torch.empty(source.shape, dtype=dtype, device=source.device)
    return _launch(source, dtype, transposed, scale, amax)


def float8_current_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    transposed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``float8_current_quantize``."""
    source = input.detach().contiguous()
    if not source.numel():
        return FLOAT8_CURRENT_QUANTIZE.reference(
            source, dtype=dtype, epsilon=epsilon, transposed=transposed
        )
    scale_inv = torch.empty(1, dtype=torch.float32, device=source.device)
    numbers = _launch(source, dtype, transposed, scale_inv, None, True, power_of_2, epsilon)
    return numbers, scale_inv


# No kernel of its own for each length: only what loads and stores lie along is worth one.
@Quick
@triton.jit(do_not_specialize=["m", "across", "epsilon", "kept"])
def _quantize_blocks(
    source,
    target,
    scale_inv,
    m,
    k,
    source_row,
    source_column,
    across,
    epsilon,
    kept,
    LARGEST: tl.constexpr,
    INFINITE: tl.constexpr,
    FORMAT: tl.constexpr,
    SQUARE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One column of blocks: ROWS of them beside each other, or one square.

    :param kept: bits of a scale that are kept.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < m)[:, None] & (column < k)[None, :]
    places = row[:, None] * source_row + column[None, :].to(tl.int64) * source_column
    values = tl.load(source + places, mask=inside, other=0.0).to(tl.float32)
    amax = tl.max(tl.abs(values), 1)
    if SQUARE:
        amax = tl.max(amax, 0) + tl.zeros((ROWS,), tl.float32)
    scale = scales_of(amax, epsilon, kept, LARGEST, INFINITE, ROWS)
    numbers = rounded(values * scale[:, None], LARGEST, FORMAT)
    tl.store(target + row[:, None] * k + column[None, :], numbers, mask=inside)
    factor = tl.div_rn(tl.full((ROWS,), 1.0, tl.float32), scale)
    if SQUARE:
        first = tl.arange(0, ROWS) == 0
        place = scale_inv + tl.program_id(0) * across + tl.program_id(1) + tl.arange(0, ROWS)
        tl.store(place, factor, mask=first)
    else:
        tl.store(scale_inv + row * across + tl.program_id(1), factor, mask=row < m)


def float8_block_quantize(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    rows: int,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract ``float8_block_quantize``; reads a transposed view without a copy."""
    m, k = input.shape
    square = rows == BLOCK
    across = blocks(k, BLOCK)
    device = input.device
    target = torch.empty(m, k, dtype=dtype, device=device)
    scale_inv = torch.empty(blocks(m, rows), across, dtype=torch.float32, device=device)
    held = BLOCK if square else _ROWS
    if input.numel():
        _quantize_blocks[(blocks(m, held), across)](
            input.detach(),
            target,
            scale_inv,
            m,
            k,
            *input.stride(),
            across,
            epsilon,
            EXPONENT if power_of_2 else -1,
            **FORMATS[dtype],
            INFINITE=torch.finfo(input.dtype).max,
            SQUARE=square,
            ROWS=held,
            BLOCK=BLOCK,
            num_warps=8,
        )
    return target, scale_inv


def without_float8(device: torch.device) -> str | None:
    """Why the device has no FP8 arithmetic, or None."""
    if device.type == "cpu" or capability(device) >= _FIRST:
        return None
    major, minor = capability(device)
    return f"FP8 arithmetic needs compute capability 8.9 or higher, not {major}.{minor}"


def supports(input: torch.Tensor, *_: object, **__: object) -> str | None:
    """Where this module's kernels apply."""
    return without_float8(input.device) or not_for_triton(input)
