"""Apex's functions for transformers; ``parallel_state`` and ``tensor_parallel`` are Megatron's."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__,
    {"enums": ("AttnMaskType", "AttnType", "LayerType")},
    ("enums", "functional", "log_util", "microbatches", "pipeline_parallel"),
)
