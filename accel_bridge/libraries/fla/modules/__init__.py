"""Building blocks."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "conv.short_conv": ("ShortConvolution",),
        "fused_norm_gate": ("FusedLayerNormGated", "FusedRMSNormGated"),
        "l2norm": ("L2Norm",),
    },
    ("conv", "convolution", "fused_norm_gate", "l2norm"),
)
