"""LayerNorm."""

from __future__ import annotations

import torch

from accel_bridge.kernels import LAYER_NORM
from accel_bridge.libraries.serving import kernel

from ._norm import Norm


class LayerNorm(Norm):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``."""

    _PARAMETERS = ("weight", "bias")

    bias: torch.nn.Parameter

    def normalize(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """The function: x [rows, h], weight [h], bias [h] -> [rows, h]."""
        weight, bias = parameters
        return kernel(LAYER_NORM)(
            x, weight, bias, eps=self.eps, zero_centered_gamma=self.zero_centered_gamma
        )
