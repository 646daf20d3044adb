"""What a user's quantizer is told about a product."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

import torch


@unique
class GEMMType(Enum):
    """A linear layer's three products: output, input's gradient, weight's gradient."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclass(frozen=True)
class MMParams:
    """Options of a product.

    :param out_dtype: of its result.
    :param use_split_accumulator: sum FP8 products in float32.
    """

    out_dtype: torch.dtype | None = None
    use_split_accumulator: bool = True
