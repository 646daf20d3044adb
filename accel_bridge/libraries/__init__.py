"""Shims for compiled libraries: their public interface, served from kernel contracts.

What :data:`LIBRARIES` names is imported under its own name (``mamba_ssm``, ``amp_C``) while a
bridge is active, from the file or directory here of that name; the other modules here are what
shims share. A shim knows its library's interface and :mod:`accel_bridge.kernels`; it knows neither
Megatron nor any hardware. It imports its own modules relatively, so that they have the library's
name, and ``MODULES`` makes the library's module tree of them (:mod:`._modules`).

Importing this package imports no torch.
"""

from __future__ import annotations

from accel_bridge.libraries._decision import Origin, Resolution, decide
from accel_bridge.libraries._finder import ShimFinder
from accel_bridge.libraries._library import LIBRARIES, Library
from accel_bridge.libraries._shims import Shims

__all__ = [
    "LIBRARIES",
    "Library",
    "Origin",
    "Resolution",
    "ShimFinder",
    "Shims",
    "decide",
]
