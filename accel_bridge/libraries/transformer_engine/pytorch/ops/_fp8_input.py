"""An activation's input, kept in FP8."""

from __future__ import annotations

from typing import Any

import torch

from ..cpp_extensions._enums import DType
from ..tensor.float8_tensor import Float8CurrentScalingQuantizer


def fp8_input(x: torch.Tensor) -> Any:
    """``x`` in FP8 (E4M3), scaled by its largest value."""
    quantizer = Float8CurrentScalingQuantizer(DType.kFloat8E4M3, x.device)
    quantizer.set_usage(rowwise=True, columnwise=False)
    return quantizer(x)
