"""``Fp8Unpadding``: takes the padding of :class:`Fp8Padding` out again.

Source of the interface: transformer_engine/pytorch/module/fp8_unpadding.py of Transformer Engine
2.13.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..jit import no_torch_dynamo
from ._padding import UnpadRows, padded_splits, recipe_align_size

__all__ = ["Fp8Unpadding"]


class Fp8Unpadding(torch.nn.Module):
    """Removes the zeros after each group of rows.

    :param num_gemms: number of groups.
    :param align_size: the groups were padded to multiples of it; None: what the recipe of the
        first call needs.
    """

    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms = num_gemms
        self.align_size = align_size

    @no_torch_dynamo()
    def forward(self, inp: torch.Tensor, m_splits: Sequence[int]) -> torch.Tensor:
        """The rows [t, k] without padding; ``m_splits`` are their counts without it."""
        assert len(m_splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        if self.align_size is None:
            self.align_size = recipe_align_size()
        padded = padded_splits(m_splits, self.align_size)
        if list(m_splits) == padded:
            return inp
        rows: torch.Tensor = UnpadRows.apply(inp, m_splits, padded)  # type: ignore[no-untyped-call]
        return rows
