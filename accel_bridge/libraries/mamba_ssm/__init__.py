"""mamba_ssm's interface on the active backend's kernels: what Mamba-2 computes with."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package, version_of

__version__ = version_of("mamba_ssm")
__getattr__, __dir__ = lazy_package(__name__, {}, ("ops",))
