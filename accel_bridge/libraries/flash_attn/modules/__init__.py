"""Modules of flash-attn: attention without its projections, and MLPs."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(__name__, {}, ("mha", "mlp"))
