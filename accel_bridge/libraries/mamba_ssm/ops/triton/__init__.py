"""Operations that the real library writes in Triton."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__, {}, ("layer_norm", "layernorm_gated", "selective_state_update", "ssd_combined")
)
