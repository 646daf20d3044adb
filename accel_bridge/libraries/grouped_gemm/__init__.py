"""grouped_gemm's interface on the active backend's kernels."""

from __future__ import annotations

from accel_bridge.libraries._library import LIBRARIES

from . import backend, ops

__version__ = LIBRARIES["grouped_gemm"].version

__all__ = ["backend", "ops"]
