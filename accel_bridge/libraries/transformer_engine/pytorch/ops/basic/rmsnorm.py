"""RMSNorm."""

from __future__ import annotations

import torch

from accel_bridge.kernels import RMS_NORM
from accel_bridge.libraries.serving import kernel

from ._norm import Norm


class RMSNorm(Norm):
    """``x / sqrt(mean square + eps) * weight``."""

    def normalize(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        """The function: x [rows, h], weight [h] -> [rows, h]."""
        (weight,) = parameters
        return kernel(RMS_NORM)(
            x, weight, eps=self.eps, zero_centered_gamma=self.zero_centered_gamma
        )
