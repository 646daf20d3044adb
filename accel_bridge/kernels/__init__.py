"""Kernel contracts: names, shapes and semantics, each with a reference in plain PyTorch.

This package knows neither Megatron nor any hardware. It imports torch, so import it late.
"""

from __future__ import annotations

from accel_bridge.kernels._contract import Contract, Kernel, compute_dtype, supports_every_call
from accel_bridge.kernels._layout import LAYOUTS, Layout, from_bnsd, to_bnsd
from accel_bridge.kernels._mask import AttentionMask, hidden_band
from accel_bridge.kernels._registry import CONTRACTS, reference_kernel, resolve
from accel_bridge.kernels._tensor_cache import TensorCache
from accel_bridge.kernels.attention import AttentionResult, document_lengths
from accel_bridge.kernels.cross_entropy import group_size, smoothing_weight
from accel_bridge.kernels.norms import gamma

__all__ = [
    "CONTRACTS",
    "LAYOUTS",
    "AttentionMask",
    "AttentionResult",
    "Contract",
    "Kernel",
    "Layout",
    "TensorCache",
    "compute_dtype",
    "document_lengths",
    "from_bnsd",
    "gamma",
    "group_size",
    "hidden_band",
    "reference_kernel",
    "resolve",
    "smoothing_weight",
    "supports_every_call",
    "to_bnsd",
]
