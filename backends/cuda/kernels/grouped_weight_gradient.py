"""The weight gradients of several experts, added to float32 sums in one launch.

Legend: t rows sorted by expert, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import capability, on_device
from accel_bridge.backends.cuda.kernels._groups import ends_of
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, gemm

#: Rows and columns of a tile of the sums, rows of experts that are multiplied at once, and tiles
#: that share operands in the cache.
_TILE = {"TILE_M": 128, "TILE_K": 256, "ROWS": 64, "GROUP": 4}
#: Bytes of which rows of operands are multiples.
_MULTIPLE = 16


@Quick
@triton.jit(launch_metadata=gemm("gradient", "k", 16))
def _add_gemms(
    gradient,
    input,
    sums,
    places,
    ends,
    m,
    k,
    across,
    tiles,
    ACCUMULATE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_K: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one expert's sums [m, k].

    :param gradient: descriptor of [t, m]; :param input: of [t, k].
    """
    expert, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    # Neighbours in time read the same rows of the operands.
    width = GROUP * across
    first = tile // width * GROUP
    high = tl.minimum(tiles // across - first, GROUP)
    top = (first + tile % width % high) * TILE_M
    side = tile % width // high * TILE_K
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    total = tl.zeros((TILE_M, TILE_K), tl.float32)
    whole = start + (end - start) // ROWS * ROWS
    for place in range(start, whole, ROWS):
        total = tl.dot(gradient.load([place, top]).T, input.load([place, side]), total)
    if whole < end:
        # The next expert's rows are left out of both: they may hold infinities.
        inside = (whole + tl.arange(0, ROWS) < end)[:, None]
        a = tl.where(inside, gradient.load([whole, top]), 0.0)
        b = tl.where(inside, input.load([whole, side]), 0.0)
        total = tl.dot(a.T, b, total)
    row = top + tl.arange(0, TILE_M)
    column = side + tl.arange(0, TILE_K)
    target = sums + tl.multiple_of(tl.load(places + expert), 4)
    target += row.to(tl.int64)[:, None] * k + column[None, :]
    inside = (row < m)[:, None] & (column < k)[None, :]
    if ACCUMULATE:
        # Nobody else adds here. The memory adds: the program does not wait for what it holds.
        tl.atomic_add(target, total, mask=inside, sem="relaxed")
    else:
        tl.store(target, total, mask=inside)


def grouped_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    accumulate: bool = True,
) -> None:
    """The contract ``grouped_weight_gradient`` for a float32 main_grad."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    k, m = input.shape[1], grad_output.shape[1]
    across = blocks(k, _TILE["TILE_K"])
    tiles = across * blocks(m, _TILE["TILE_M"])
    if tiles and splits:
        _add_gemms[(len(splits) * tiles,)](
            TensorDescriptor.from_tensor(
                grad_output.contiguous(), [_TILE["ROWS"], _TILE["TILE_M"]]
            ),
            TensorDescriptor.from_tensor(input.contiguous(), [_TILE["ROWS"], _TILE["TILE_K"]]),
            main_grad,
            on_device(tuple(places), torch.int64, input.device),
            ends_of(splits, input.device),
            m,
            k,
            across,
            tiles,
            ACCUMULATE=accumulate,
            **_TILE,
            num_warps=8,
            # From 12.0 on, GPUs of workstations have half the shared memory of Hopper's.
            num_stages=4 if capability(input.device) < (12, 0) else 3,
        )


def supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    accumulate: bool = True,
) -> str | None:
    """Where :func:`grouped_weight_gradient` applies."""
    if input.dtype != grad_output.dtype or input.dtype not in (torch.bfloat16, torch.float16):
        return f"Triton's GEMMs are for half precision, not {input.dtype}"
    if main_grad.dtype != torch.float32:
        return f"sums in {main_grad.dtype}"
    operands = (input, grad_output)
    if any(x.shape[1] * x.element_size() % _MULTIPLE or x.data_ptr() % _MULTIPLE for x in operands):
        return f"rows that do not begin at multiples of {_MULTIPLE} bytes"
    if any(place % 4 for place in places):
        return "sums that do not begin at multiples of 16 bytes"
    return None
