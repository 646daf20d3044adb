"""Updating scales, and casting parts of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel_bridge.kernels import float8_scale

from ..constants import TE_DType_To_Torch
from ._enums import DType


class FP8TensorMeta:
    """A scale, its reciprocal and a history of largest magnitudes."""

    scale: torch.Tensor
    scale_inv: torch.Tensor
    amax_history: torch.Tensor


def fused_amax_and_scale_update_after_reduction(
    amax_reduction_buffer: torch.Tensor,
    amax_histories: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    amax_compute_algo: str,
    fp8_dtype: DType,
    margin: float,
) -> None:
    """Enter the reduced magnitudes into every module's history, and compute its next scales.

    :param amax_reduction_buffer: the newest magnitudes of all modules, one after the other.
    :param amax_histories: of each module [length, n]; moved one step on, in place.
    :param scales: of each module [n]; changed in place.
    :param amax_compute_algo: ``max`` or ``most_recent``.
    :param fp8_dtype: the format.
    :param margin: scales are divided by two to this power.
    """
    largest = torch.finfo(TE_DType_To_Torch[fp8_dtype]).max * 2.0**-margin
    newest = amax_reduction_buffer.split([history.shape[1] for history in amax_histories])
    amaxes = []
    for history, latest in zip(amax_histories, newest, strict=True):
        last = torch.where(latest != 0, latest, history[0])
        # What was not quantized since the last update (a weight in later microbatches) stays.
        updated = last != 0
        rolled = torch.cat((history[1:], last.unsqueeze(0)))
        amax = rolled.nan_to_num(nan=0.0, posinf=torch.inf).amax(0)
        amaxes.append(torch.where(updated, amax if amax_compute_algo == "max" else last, 0.0))
        rolled[0].zero_()
        history.copy_(torch.where(updated, rolled, history))
    # One set of operations for the scales of all modules.
    amax, old = torch.cat(amaxes), torch.cat(list(scales))
    new = (torch.full_like(amax, largest) / amax).clamp(max=torch.finfo(torch.float32).max)
    new = torch.where((amax > 0) & torch.isfinite(amax), new, old)
    torch._foreach_copy_(list(scales), list(new.split([len(scale) for scale in scales])))


def multi_tensor_compute_scale_and_scale_inv(
    chunk_size: int,
    is_infinite: Any,
    tensor_lists: Sequence[Sequence[torch.Tensor]],
    max_fp8: float,
    force_pow_2_scales: bool,
    epsilon: float,
) -> None:
    """Scales and factors from largest magnitudes.

    :param chunk_size: not used.
    :param is_infinite: not used.
    :param tensor_lists: (magnitudes, scales, factors), float32; the latter two are overwritten.
    :param max_fp8: the format's largest number.
    :param force_pow_2_scales: scales are powers of two.
    :param epsilon: least value taken for a largest magnitude.
    """
    dtype = torch.float8_e4m3fn if max_fp8 < 1000 else torch.float8_e5m2
    for amax, scale, scale_inv in zip(*tensor_lists, strict=True):
        scale.copy_(float8_scale(amax, dtype, power_of_2=force_pow_2_scales, epsilon=epsilon))
        torch.reciprocal(scale, out=scale_inv)


def _blocks_of_part(
    start_offset: int, count: int, h: int, w: int, block_len: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The block row and column of each element of a flat part of an [h, w] weight."""
    place = torch.arange(start_offset, start_offset + count, device=device)
    return place // w // block_len, place % w // block_len


def fp8_block_scaling_compute_partial_amax(
    tensor: torch.Tensor, amax: torch.Tensor, h: int, w: int, start_offset: int, block_len: int
) -> None:
    """Largest magnitudes of the blocks that a part of a weight touches, into ``amax``.

    :param tensor: flat, the part.
    :param amax: [h / block_len, w / block_len or wider], float32.
    :param h: rows of the weight.
    :param w: its columns.
    :param start_offset: where the part begins in the flat weight.
    :param block_len: rows and columns of a block.
    """
    flat = tensor.detach().reshape(-1).abs().float()
    row, column = _blocks_of_part(start_offset, len(flat), h, w, block_len, flat.device)
    found = torch.zeros(amax.shape, dtype=torch.float32, device=flat.device).view(-1)
    found.scatter_reduce_(0, row * amax.shape[1] + column, flat, "amax")
    amax.copy_(found.view(amax.shape))


def fp8_block_scaling_partial_cast(
    inp: torch.Tensor,
    out: torch.Tensor,
    scale: torch.Tensor,
    h: int,
    w: int,
    start_offset: int,
    block_len: int,
    out_dtype: DType,
) -> None:
    """Quantize a part of a weight with its blocks' scales.

    :param inp: flat, the part.
    :param out: uint8, as long: receives the FP8 numbers.
    :param scale: [h / block_len, w / block_len or wider], float32.
    :param h: rows of the weight.
    :param w: its columns.
    :param start_offset: where the part begins in the flat weight.
    :param block_len: rows and columns of a block.
    :param out_dtype: the format.
    """
    dtype = TE_DType_To_Torch[out_dtype]
    flat = inp.detach().reshape(-1).float()
    row, column = _blocks_of_part(start_offset, len(flat), h, w, block_len, flat.device)
    limit = torch.finfo(dtype).max
    numbers = (flat * scale[row, column]).clamp(-limit, limit).to(dtype)
    out.view(-1).copy_(numbers.view(out.dtype))
