"""flash-linear-attention's interface on the active backend's kernels: what Megatron asks of it."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package, version_of

__version__ = version_of("fla")
__getattr__, __dir__ = lazy_package(__name__, {}, ("modules", "ops", "utils"))
