"""Building blocks."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__, {"l2norm": ("L2Norm",)}, ("conv", "convolution", "l2norm")
)
