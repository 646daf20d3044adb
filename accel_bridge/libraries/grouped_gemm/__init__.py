"""grouped_gemm's interface on the active backend's kernels."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package, version_of

__version__ = version_of("grouped_gemm")
__getattr__, __dir__ = lazy_package(__name__, {}, ("backend", "ops"))
