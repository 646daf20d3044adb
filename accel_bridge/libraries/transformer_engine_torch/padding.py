"""Rows of each expert, padded to what a grouped GEMM wants, and back.

Source: padding.cpp and multi_tensor_pad_last_dim of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional


def _parts(
    tensor: torch.Tensor, kept: Sequence[int], groups: Sequence[int]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """(the first rows of each group, its other rows)."""
    sizes = [size for one, all in zip(kept, groups, strict=True) for size in (one, all - one)]
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
    targets, gaps = _parts(output, input_row_list, padded_input_row_list)
    # A launch for all groups: many small copies are slow to launch.
    torch._foreach_copy_(targets, input.split(list(input_row_list)))
    torch._foreach_zero_(gaps)


@torch.no_grad()
def fused_multi_row_unpadding(
    input: torch.Tensor,
    output: torch.Tensor,
    input_row_list: Sequence[int],
    unpadded_input_row_list: Sequence[int],
) -> None:
    """The opposite of :func:`fused_multi_row_padding`."""
    rows, _ = _parts(input, unpadded_input_row_list, input_row_list)
    torch.cat(rows, out=output)


def multi_tensor_pad_last_dim(inputs: Sequence[torch.Tensor], alignment: int) -> list[torch.Tensor]:
    """Each [m, k] with zeros after its last dimension, up to a multiple of ``alignment``."""
    return [functional.pad(one, (0, -one.shape[-1] % alignment)) for one in inputs]
