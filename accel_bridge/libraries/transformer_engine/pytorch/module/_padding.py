"""Rows of groups, padded with zeros to multiples of a size that FP8 products take.

Legend: t rows of all groups, k size of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..quantization import FP8GlobalStateManager, get_align_size_for_quantization


def padded_splits(splits: Sequence[int], align_size: int) -> list[int]:
    """Each count, rounded up to a multiple of ``align_size``."""
    return [-(-count // align_size) * align_size for count in splits]


def recipe_align_size() -> int:
    """The size whose multiples the products of the current recipe take."""
    size: int = get_align_size_for_quantization(FP8GlobalStateManager.get_fp8_recipe())
    return size


def _parts(
    tensor: torch.Tensor, splits: Sequence[int], padded: Sequence[int]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """(rows of each group, rows of padding behind each) of a padded tensor."""
    sizes = [
        size for count, whole in zip(splits, padded, strict=True) for size in (count, whole - count)
    ]
    parts = tensor.split(sizes)
    return parts[0::2], parts[1::2]


def pad_rows(inp: torch.Tensor, splits: Sequence[int], padded: Sequence[int]) -> torch.Tensor:
    """inp [t, k] with zeros after each group, such that group i has ``padded[i]`` rows."""
    rows = inp.reshape(-1, inp.shape[-1])
    out = rows.new_empty((sum(padded), rows.shape[1]))
    targets, gaps = _parts(out, splits, padded)
    # A launch for all groups: many small copies are slow to launch.
    torch._foreach_copy_(targets, rows.split(list(splits)))
    torch._foreach_zero_(gaps)
    return out


def unpad_rows(inp: torch.Tensor, splits: Sequence[int], padded: Sequence[int]) -> torch.Tensor:
    """The inverse of :func:`pad_rows`: [t, k]."""
    return torch.cat(_parts(inp.reshape(-1, inp.shape[-1]), splits, padded)[0])


class PadRows(torch.autograd.Function):
    """:func:`pad_rows`, differentiable."""

    @staticmethod
    def forward(
        ctx: Any, inp: torch.Tensor, splits: Sequence[int], padded: Sequence[int]
    ) -> torch.Tensor:
        ctx.splits, ctx.padded, ctx.shape = splits, padded, inp.shape
        return pad_rows(inp, splits, padded)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return unpad_rows(gradients[0], ctx.splits, ctx.padded).view(ctx.shape), None, None


class UnpadRows(torch.autograd.Function):
    """:func:`unpad_rows`, differentiable."""

    @staticmethod
    def forward(
        ctx: Any, inp: torch.Tensor, splits: Sequence[int], padded: Sequence[int]
    ) -> torch.Tensor:
        ctx.splits, ctx.padded, ctx.shape = splits, padded, inp.shape
        return unpad_rows(inp, splits, padded)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return pad_rows(gradients[0], ctx.splits, ctx.padded).view(ctx.shape), None, None
