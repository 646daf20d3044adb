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
    """The first rows of each group of ``input``; zeros where ``output``'s group is longer."""
    source, target = input.split(list(taken)), output.split(list(made))
    for rows, place in zip(source, target, strict=True):
        kept = min(len(rows), len(place))
        place[:kept].copy_(rows[:kept])
        if kept < len(place):
            place[kept:].zero_()


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
