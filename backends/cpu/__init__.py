"""The CPU backend, which others may extend: a device that is the CPU to torch, other kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bridge.process.lazy import lazy_names

if TYPE_CHECKING:
    from accel_bridge.backends.cpu._backend import CpuBackend as CpuBackend

__getattr__, __dir__, __all__ = lazy_names(__name__)
