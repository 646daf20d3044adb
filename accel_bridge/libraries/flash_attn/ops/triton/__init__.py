"""Operations that flash-attn writes in Triton."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(__name__, {}, ("cross_entropy", "layer_norm", "rotary"))
