"""Rows of each expert, padded to what a grouped GEMM wants, and back.

Source: padding.cpp and multi_tensor_pad_last_dim of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional


def _copy(
    input: torch.Tensor, output: torch.Tensor, taken: Sequence[int], made: Sequence[int]
) -> None:
    """The first rows of each group of ``input``; zeros where ``output``'s group is longer.

    A launch or two for all groups: many small copies are slow to launch.
    """
    kept = [min(pair) for pair in zip(taken, made, strict=True)]
    targets, gaps = _parts(output, kept, made)
    torch._foreach_copy_(targets, _parts(input, kept, taken)[0])
    if gaps:
        torch._foreach_zero_(gaps)


def _parts(
    tensor: torch.Tensor, first: list[int], groups: Sequence[int]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """(the first rows of each group, its other rows)."""
    if first == list(groups):
        return tensor.split(first), ()
    sizes = [size for one, all in zip(first, groups, strict=True) for size in (one, all - one)]
    parts = tensor.split(sizes)
    return parts[0::2], parts[1::2]


@torch.no_grad()
def fused_multi_row_padding(
    input: torch.Tensor,
    output: torch.Tensor,
    input_row_list: Sequence[int],
    padded_input_row_list: Sequence[int],
) -> None:
    """Copy groups of rows [t, h] into longer ones, in place.

    :param input_row_list: rows of each group of ``input``.
    :param padded_input_row_list: of ``output``; the rest of each becomes zeros.
    """
    _copy(input, output, input_row_list, padded_input_row_list)


@torch.no_grad()
def fused_multi_row_unpadding(
    input: torch.Tensor,
    output: torch.Tensor,
    input_row_list: Sequence[int],
    unpadded_input_row_list: Sequence[int],
) -> None:
    """The opposite of :func:`fused_multi_row_padding`."""
    _copy(input, output, input_row_list, unpadded_input_row_list)


def multi_tensor_pad_last_dim(inputs: Sequence[torch.Tensor], alignment: int) -> list[torch.Tensor]:
    """Each [m, k] with zeros after its last dimension, up to a multiple of ``alignment``."""
    return [functional.pad(one, (0, -one.shape[-1] % alignment)) for one in inputs]
