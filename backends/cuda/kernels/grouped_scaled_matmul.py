"""FP8 GEMMs of several experts and their weight gradients: one launch, or cuBLAS's large ones.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import on_device
from accel_bridge.backends.cuda.kernels._cublas import add_gemm
from accel_bridge.backends.cuda.kernels._groups import ends_of, tile_of, tiles_of, too_many
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, gemm, power_of_two
from accel_bridge.backends.cuda.kernels.float8 import without_float8
from accel_bridge.backends.cuda.kernels.scaled_matmul import scaled_matmul
from accel_bridge.kernels.float8 import parts_of_transposed
from accel_bridge.kernels.weight_gradient import is_much

#: Rows and columns of a GEMM's tile, numbers summed at once, and tiles of rows that share the
#: weight in the cache.
_FAST = {"TILE_T": 128, "TILE_M": 128, "TILE_K": 128, "GROUP": 8}
#: Likewise where sums are kept in float32: those beside the tensor cores' take as many registers.
_PRECISE = {"TILE_T": 256, "TILE_M": 128, "TILE_K": 128, "GROUP": 8}
#: Likewise of a weight gradient: rows and columns of the sums, rows of experts.
_GRADIENT = {"TILE_M": 128, "TILE_K": 128, "ROWS": 128, "GROUP": 8}
#: Bytes of which rows of operands are multiples.
_MULTIPLE = 16


def _one_by_one(splits: Sequence[int], weight: int) -> bool:
    """Whether cuBLAS's GEMM of each expert is as fast as one launch."""
    return len(splits) == 1 or is_much(sum(splits), weight, len(splits))


def _scalars(scale_inv: torch.Tensor) -> Sequence[torch.Tensor]:
    """Each of [e] as a tensor of one number that begins where cuBLAS reads one."""
    if len(scale_inv) == 1 and scale_inv.data_ptr() % _MULTIPLE == 0:
        return (scale_inv,)
    return torch.nn.functional.pad(scale_inv[:, None], (0, 3))[:, :1].unbind()


@Quick
@triton.jit(do_not_specialize=["experts", "high"], launch_metadata=gemm("a", "m", 8))
def _gemms(
    a,
    b,
    a_scale_inv,
    b_scale_inv,
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
    expert, first, end, tile = tile_of(ends, top + inner % tall, experts, TILE_T, EXPERTS)
    corner = first + tile * TILE_T
    side = inner // tall * TILE_M
    row = corner + tl.arange(0, TILE_T)
    total = tl.zeros((TILE_T, TILE_M), tl.float32)
    down = tl.cdiv(k, TILE_K)
    # A tile is as wide as a block of the weight: it has one factor.
    x_scale_inv = a_scale_inv + tl.minimum(row, end - 1).to(tl.int64) * down
    weight_scale_inv = b_scale_inv + (expert * across + inner // tall) * down
    for block in range(down):
        # What is read beyond an edge, of another expert, is not written.
        x = a.load([corner, block * TILE_K])
        weight = b.load([expert * m + side, block * TILE_K])
        if BY_BLOCK:
            factor = tl.load(x_scale_inv + block) * tl.load(weight_scale_inv + block)
            total += tl.dot(x, weight.T) * factor[:, None]
        elif PRECISE:
            # Tensor cores keep fewer bits of their sums than float32 has.
            total = tl.dot(x, weight.T, total, max_num_imprecise_acc=TILE_K)
        else:
            total = tl.dot(x, weight.T, total)
    if not BY_BLOCK:
        total *= tl.load(a_scale_inv + expert) * tl.load(b_scale_inv + expert)
    column = side + tl.arange(0, TILE_M)
    place = row.to(tl.int64)[:, None] * m + column[None, :]
    inside = (row < end)[:, None] & (column < m)[None, :]
    tl.store(output + place, total.to(output.dtype.element_ty), mask=inside)


def grouped_scaled_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
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
    by_block = a_scale_inv.dim() > 1
    if not by_block and a.is_cuda and m % _MULTIPLE == 0 and _one_by_one(splits, m * k):
        parts = a.contiguous().split(list(splits)), output.split(list(splits))
        scale_inv = _scalars(a_scale_inv), _scalars(b_scale_inv)
        options: dict[str, Any] = {"out_dtype": dtype, "use_fast_accum": not precise}
        for rows, out, weight, x, w in zip(*parts, b, *scale_inv, strict=True):
            if len(rows):
                torch._scaled_mm(rows, weight.t(), x, w, out=out, **options)
        return output
    tile = _PRECISE if precise and not by_block else _FAST
    high, across = tiles_of(splits, tile["TILE_T"]), blocks(m, tile["TILE_M"])
    _gemms[(high * across,)](
        TensorDescriptor.from_tensor(a.contiguous(), [tile["TILE_T"], tile["TILE_K"]]),
        TensorDescriptor.from_tensor(b.reshape(-1, k), [tile["TILE_M"], tile["TILE_K"]]),
        a_scale_inv.contiguous(),
        b_scale_inv.contiguous(),
        output,
        ends_of(splits, a.device),
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
@triton.jit(launch_metadata=gemm("gradient", "k", 8))
def _add_scaled_gemms(
    gradient,
    input,
    gradient_scale_inv,
    input_scale_inv,
    sums,
    places,
    ends,
    block_ends,
    m,
    k,
    across,
    tiles,
    ACCUMULATE: tl.constexpr,
    BY_BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
    COPIED: tl.constexpr,
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
    top = (first + tile % width % high) * TILE_M
    side = tile % width // high * TILE_K
    row = top + tl.arange(0, TILE_M)
    column = side + tl.arange(0, TILE_K)
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    rows = tl.load(ends + expert) - start
    if ALIGNED:
        start = tl.multiple_of(start, 16)
        rows = tl.multiple_of(rows, 16)
    total = tl.zeros((TILE_M, TILE_K), tl.float32)
    if COPIED:
        left = tl.make_tensor_descriptor(
            gradient + start.to(tl.int64) * m, [m, rows], [rows, 1], [TILE_M, ROWS]
        )
        right = tl.make_tensor_descriptor(
            input + start.to(tl.int64) * k, [k, rows], [rows, 1], [TILE_K, ROWS]
        )
        for place in range(0, rows, ROWS):
            x = left.load([top, place])
            y = right.load([side, place])
            # Tensor cores keep fewer bits of their sums than float32 has.
            total = tl.dot(x, y.T, total, max_num_imprecise_acc=ROWS)
    else:
        step = tl.arange(0, ROWS)
        # What is read beyond an edge is not written.
        safe_row = tl.minimum(row, m - 1).to(tl.int64)
        safe_column = tl.minimum(column, k - 1).to(tl.int64)
        left = gradient + start.to(tl.int64) * m + safe_row[:, None] * rows + step[None, :]
        right = input + start.to(tl.int64) * k + safe_column[None, :] * rows + step[:, None]
        block = tl.load(block_ends + expert - 1, mask=expert > 0, other=0)
        for place in range(0, rows, ROWS):
            x = tl.load(left, mask=(place + step < rows)[None, :], other=0.0)
            y = tl.load(right, mask=(place + step < rows)[:, None], other=0.0)
            if BY_BLOCK:
                u = tl.load(gradient_scale_inv + block.to(tl.int64) * m + safe_row)
                s = tl.load(input_scale_inv + block.to(tl.int64) * k + safe_column)
                total += tl.dot(x, y) * u[:, None] * s[None, :]
                block += 1
            else:
                total += tl.dot(x, y)
            left += ROWS
            right += ROWS
    if not BY_BLOCK:
        total *= tl.load(gradient_scale_inv + expert) * tl.load(input_scale_inv + expert)
    target = sums + tl.multiple_of(tl.load(places + expert), 4)
    target += row.to(tl.int64)[:, None] * k + column[None, :]
    inside = (row < m)[:, None] & (column < k)[None, :]
    if ACCUMULATE:
        # Nobody else adds here. The memory adds: the program does not wait for what it holds.
        tl.atomic_add(target, total, mask=inside, sem="relaxed")
    else:
        tl.store(target, total, mask=inside)


def grouped_scaled_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    input_scale_inv: torch.Tensor,
    grad_scale_inv: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    sizes: tuple[int, int],
    accumulate: bool = True,
) -> None:
    """The contract ``grouped_scaled_weight_gradient`` for a float32 main_grad."""
    k, m = sizes
    across = blocks(k, _GRADIENT["TILE_K"])
    tiles = across * blocks(m, _GRADIENT["TILE_M"])
    if not (tiles and sum(splits)):
        for place in () if accumulate else places:
            main_grad[place : place + m * k].zero_()
        return
    device, rows = input.device, _GRADIENT["ROWS"]
    by_block = input_scale_inv.dim() > 1
    grad_scale_inv, input_scale_inv = grad_scale_inv.contiguous(), input_scale_inv.contiguous()
    if input.is_cuda and _one_by_one(splits, m * k):
        counts = [blocks(count, rows) for count in splits]
        parts = (
            *(parts_of_transposed(grad_output, splits, m), parts_of_transposed(input, splits, k)),
            *(
                one.split(counts) if by_block else _scalars(one)
                for one in (grad_scale_inv, input_scale_inv)
            ),
        )
        for left, right, a, b, place in zip(*parts, places, strict=True):
            sums = main_grad[place : place + m * k].view(m, k)
            if not left.numel():
                if not accumulate:
                    sums.zero_()
            elif not add_gemm(left, right, a, b, sums, accumulate):
                made = scaled_matmul(left, right, a.t(), b.t(), dtype=torch.float32)
                sums.add_(made) if accumulate else sums.copy_(made)
        return
    aligned = all(count % _MULTIPLE == 0 for count in splits)
    begin = input.data_ptr() | grad_output.data_ptr()
    copied = aligned and not by_block and begin % _MULTIPLE == 0
    if copied:
        # A kernel's own descriptors lie in memory that whoever launches it gives.
        triton.set_allocator(_scratch)
    ends = ends_of(splits, device)
    _add_scaled_gemms[(len(splits) * tiles,)](
        grad_output,
        input,
        grad_scale_inv,
        input_scale_inv,
        main_grad,
        on_device(tuple(places), torch.int64, device),
        ends,
        ends_of([blocks(count, rows) for count in splits], device) if by_block else ends,
        m,
        k,
        across,
        tiles,
        ACCUMULATE=accumulate,
        BY_BLOCK=by_block,
        ALIGNED=aligned,
        COPIED=copied,
        **_GRADIENT,
        num_warps=4 if copied else 8,
        num_stages=3 if copied else 4,
    )


def _scratch(size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int8, device="cuda")


def supports(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    **_: object,
) -> str | None:
    """Where :func:`grouped_scaled_matmul` applies."""
    if a.dtype == b.dtype == torch.float8_e5m2:
        return "both operands are E5M2"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"a result in {dtype}"
    if a.shape[1] % _MULTIPLE:
        return f"rows of {a.shape[1]} numbers, no multiple of {_MULTIPLE}"
    return without_float8(a.device) or too_many(splits)


def gradient_supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    input_scale_inv: torch.Tensor,
    grad_scale_inv: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    **_: object,
) -> str | None:
    """Where :func:`grouped_scaled_weight_gradient` applies."""
    if input.dtype == grad_output.dtype == torch.float8_e5m2:
        return "both operands are E5M2"
    if main_grad.dtype != torch.float32:
        return f"sums in {main_grad.dtype}"
    if any(place % 4 for place in places):
        return "sums that do not begin at multiples of 16 bytes"
    return without_float8(input.device) or too_many(splits)
