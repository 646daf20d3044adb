"""LayerNorm."""

from __future__ import annotations

import torch

from accel_bridge.kernels import LAYER_NORM

from ._norm import Norm


class LayerNorm(Norm):
    """``(x - mean) / sqrt(variance + eps) * weight + bias``."""

    _PARAMETERS = ("weight", "bias")
    _CONTRACT = LAYER_NORM

    bias: torch.nn.Parameter
