"""Scales of delayed scaling, and casting parts of weights that ranks hold.

Source: common/recipe/delayed_scaling.cu, fp8_block_scaling.cu, mxfp8_scaling.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accel_bridge.kernels.float8 import MX_BLOCK, mx_scale, rounded
from accel_bridge.libraries.transformer_engine_torch._quantizers import writing
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE


@torch.no_grad()
def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: torch.Tensor,
    amax_histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    amax_compute_algo: str,
    fp8_dtype: int,
    margin: float,
) -> None:
    """Enter the reduced magnitudes into every module's history, and compute its next scales.

    :param amax_reduction_buffer: the newest magnitudes of all modules, one after the other.
    :param amax_histories: of each module [length, n]; moved one step on, in place.
    :param scales: of each module [n]; changed in place.
    :param amax_compute_algo: ``max`` or ``most_recent``.
    :param fp8_dtype: a ``DType``.
    :param margin: scales are divided by two to this power.
    :raises ValueError: another algorithm.
    """
    if amax_compute_algo not in ("max", "most_recent"):
        raise ValueError(f"Unsupported amax compute algorithm ({amax_compute_algo})")
    largest = torch.finfo(TORCH_DTYPE[fp8_dtype]).max * 2.0**-margin
    with writing(*amax_histories, *scales):
        _update(amax_reduction_buffer, amax_histories, scales, amax_compute_algo == "max", largest)


def _update(
    newest: torch.Tensor,
    histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    of_history: bool,
    largest: float,
) -> None:
    # One set of operations for all modules: their histories are of one recipe, and so as long.
    sizes = [len(scale) for scale in scales]
    history, old = torch.cat(list(histories), 1), torch.cat(list(scales))
    last = torch.where(newest != 0, newest, history[0])
    # What was not quantized since the last update (a weight in later microbatches) stays.
    updated = last != 0
    rolled = torch.cat((history[1:], last.unsqueeze(0)))
    # The largest of the others where one is NaN, as fmaxf.
    amax = rolled.nan_to_num(nan=0.0, posinf=torch.inf).amax(0) if of_history else last
    rolled[0].zero_()
    rolled = torch.where(updated, rolled, history)
    torch._foreach_copy_(list(histories), list(rolled.split(sizes, 1)))
    scale = (torch.full_like(amax, largest) / amax).clamp(max=torch.finfo(torch.float32).max)
    scale = torch.where(updated & (amax > 0) & torch.isfinite(amax), scale, old)
    torch._foreach_copy_(list(scales), list(scale.split(sizes)))


def _places(
    start_offset: int, count: int, w: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each element of a flat part of a weight with ``w`` columns."""
    place = torch.arange(start_offset, start_offset + count, device=device)
    return place // w, place % w


def _largest(
    magnitudes: torch.Tensor, row: torch.Tensor, column: torch.Tensor, amax: torch.Tensor
) -> None:
    """Set ``amax`` [rows, columns] to the largest magnitudes of those with a place, else to 0."""
    found = torch.zeros(amax.shape, dtype=torch.float32, device=amax.device).view(-1)
    found.scatter_reduce_(0, row * amax.shape[1] + column, magnitudes, "amax")
    amax.copy_(found.view(amax.shape))


@torch.no_grad()
def fp8_block_scaling_compute_partial_amax(
    tensor: torch.Tensor, amax: torch.Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """Largest magnitudes of the blocks that a part of a weight touches, 0 for others.

    :param tensor: the part, float32 or bfloat16.
    :param amax: [h / block_len, w / block_len or wider], float32; overwritten.
    :param h: rows of the weight.
    :param w: its columns.
    :param start_offset: where the part begins in the flat weight.
    :param block_len: rows and columns of a block.
    """
    flat = tensor.detach().reshape(-1).abs().float()
    row, column = _places(start_offset, len(flat), w, flat.device)
    _largest(flat, row // block_len, column // block_len, amax)


@torch.no_grad()
def fp8_block_scaling_partial_cast(
    inp: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    h: int,
    w: int,
    start_offset: int,
    block_len: int,
    out_dtype: int,
) -> None:
    """Quantize a part of a weight with its blocks' scales.

    :param inp: the part, float32 or bfloat16.
    :param out: uint8, as long: receives the FP8 numbers.
    :param scale: [h / block_len, w / block_len or wider], float32.
    :param h: rows of the weight.
    :param w: its columns.
    :param start_offset: where the part begins in the flat weight.
    :param block_len: rows and columns of a block.
    :param out_dtype: a ``DType``.
    """
    flat = inp.detach().reshape(-1).float()
    row, column = _places(start_offset, len(flat), w, flat.device)
    each = scale[row // block_len, column // block_len]
    out.view(-1).copy_(rounded(flat * each, TORCH_DTYPE[out_dtype]).view(out.dtype))


@torch.no_grad()
def mxfp8_scaling_compute_partial_amax(
    input: torch.Tensor,
    amax_rowwise: torch.Tensor,
    amax_colwise: torch.Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Largest magnitudes of the blocks of 32, along rows and columns, that a part touches.

    :param input: [n], the part.
    :param amax_rowwise: [rows, cols / 32] or larger, in the input's dtype; overwritten.
    :param amax_colwise: [rows / 32, cols] or larger, likewise.
    :param rows: rows of the weight.
    :param cols: its columns.
    :param start_offset: where the part begins in the flat weight.
    """
    flat = input.detach().reshape(-1).abs().float()
    row, column = _places(start_offset, len(flat), cols, flat.device)
    _largest(flat, row, column // MX_BLOCK, amax_rowwise)
    _largest(flat, row // MX_BLOCK, column, amax_colwise)


@torch.no_grad()
def mxfp8_scaling_partial_cast(
    input: torch.Tensor,
    output_rowwise: torch.Tensor,
    output_colwise: torch.Tensor,
    scale_inv_rowwise: torch.Tensor,
    scale_inv_colwise: torch.Tensor,
    rows: int,
    cols: int,
    start_offset: int,
) -> None:
    """Quantize a part of a weight to E4M3 with the factors of both directions.

    :param input: [n], the part.
    :param output_rowwise: [n], uint8: receives the numbers scaled along rows.
    :param output_colwise: [n], uint8: those scaled along columns.
    :param scale_inv_rowwise: [rows, cols / 32] or larger, E8M0 as uint8.
    :param scale_inv_colwise: [rows / 32, cols] or larger, likewise.
    :param rows: rows of the weight.
    :param cols: its columns.
    :param start_offset: where the part begins in the flat weight.
    """
    flat = input.detach().reshape(-1).float()
    row, column = _places(start_offset, len(flat), cols, flat.device)
    for each, out in (
        (scale_inv_rowwise[row, column // MX_BLOCK], output_rowwise),
        (scale_inv_colwise[row // MX_BLOCK, column], output_colwise),
    ):
        numbers = rounded(flat * mx_scale(each), torch.float8_e4m3fn)
        out.view(-1).copy_(numbers.view(out.dtype))
