"""Ascend without an Ascend: the real torch_npu over substitute CANN libraries, on the host.

The libraries (``sources/``) have CANN's C functions and compute with ATen's CPU kernels. What runs
on them shows that code is wired right; it says nothing of speed, nor of CANN's numerics. All that
it prints says EMULATED. See docs/ascend.md.
"""

from __future__ import annotations

from accel_bridge.backends.ascend.emulator._launch import main

__all__ = ["main"]
