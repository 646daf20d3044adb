"""causal_conv1d's interface on the active backend's kernels."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package, version_of

__version__ = version_of("causal_conv1d")
__getattr__, __dir__ = lazy_package(
    __name__,
    {"causal_conv1d_interface": ("causal_conv1d_fn", "causal_conv1d_update")},
    ("causal_conv1d_interface", "causal_conv1d_varlen"),
)
