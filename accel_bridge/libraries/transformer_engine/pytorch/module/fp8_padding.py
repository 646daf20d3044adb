"""``Fp8Padding``: rows of experts, padded for FP8 products.

Source of the interface: transformer_engine/pytorch/module/fp8_padding.py of Transformer Engine
2.13.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..jit import no_torch_dynamo
from ._padding import PadRows, padded_splits, recipe_align_size

__all__ = ["Fp8Padding"]


class Fp8Padding(torch.nn.Module):
    """Pads each group of rows with zeros.

    :param num_gemms: number of groups.
    :param align_size: pad to multiples of it; None: what the recipe of the first call needs.
    """

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms = num_gemms
        self.align_size = align_size

    @no_torch_dynamo()
    def forward(
        self, inp: torch.Tensor, m_splits: Sequence[int]
    ) -> tuple[torch.Tensor, Sequence[int]]:
        """(padded rows, their counts) for inp [t, k] with ``m_splits`` rows per group."""
        assert len(m_splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        if self.align_size is None:
            self.align_size = recipe_align_size()
        padded = padded_splits(m_splits, self.align_size)
        if list(m_splits) == padded:
            return inp, m_splits
        return PadRows.apply(inp, m_splits, padded), padded  # type: ignore[no-untyped-call]
