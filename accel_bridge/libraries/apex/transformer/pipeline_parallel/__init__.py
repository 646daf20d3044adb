"""The micro-batches of pipeline parallelism; its schedules are Megatron's own."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(__name__, {}, ("utils",))
