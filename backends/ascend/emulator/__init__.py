"""Ascend without an Ascend: the real torch_npu over substitute CANN libraries, on the host.

The libraries (``sources/``) have CANN's C functions and compute with ATen's CPU kernels. A run on
them shows that code is wired correctly; it shows nothing about speed or CANN's numerics. All its
output says EMULATED. See docs/ascend.md.
"""

from __future__ import annotations

from accel_bridge.backends.ascend.emulator._launch import main

__all__ = ["main"]
