"""Quantizers of the user's own making, for the recipe ``CustomRecipe``."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__, {}, ("gemm", "quantization", "quantization_current_scaling")
)
