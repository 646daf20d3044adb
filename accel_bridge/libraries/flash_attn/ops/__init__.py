"""Operations of flash-attn."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__, {}, ("activations", "fused_dense", "layer_norm", "rms_norm", "triton")
)
