"""Shims for compiled libraries: their public interface, served from kernel contracts.

Each folder or module here whose name has no leading underscore, and is not listed in
:data:`OWN_MODULES`, is imported under that name (``mamba_ssm``, ``amp_C``) while a bridge
is active; never as ``accel_bridge.libraries.NAME``. A shim knows its library's interface and
:mod:`accel_bridge.kernels`; it knows neither Megatron nor any hardware. It imports its own modules
relatively, so that they carry the library's real module paths, which pickles name.

Importing this package imports no torch.
"""

from __future__ import annotations

from typing import Final

from accel_bridge.libraries._decision import Origin, Resolution, decide
from accel_bridge.libraries._finder import ShimFinder
from accel_bridge.libraries._library import LIBRARIES, Library
from accel_bridge.libraries._shims import Shims

#: Modules here that are no shims.
OWN_MODULES: Final = (
    "adam",
    "main_grad",
    "names",
    "selective_scan",
    "softmax",
    "tensor_lists",
)

__all__ = [
    "LIBRARIES",
    "OWN_MODULES",
    "Library",
    "Origin",
    "Resolution",
    "ShimFinder",
    "Shims",
    "decide",
]
