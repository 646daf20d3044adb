"""Attention, rotary embeddings and caches for inference.

Source of the names: transformer_engine/pytorch/attention of Transformer Engine 2.13; those of
older versions, which Megatron still imports, are ``_SplitAlongDim`` and ``apply_rotary_pos_emb``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accel_bridge.libraries.names import lazy_package

EXPORTS: Final[Mapping[str, Sequence[str]]] = {
    "dot_product_attention": ("DotProductAttention",),
    "inference": ("InferenceParams",),
    "multi_head_attention": ("MultiheadAttention",),
    "rope": ("RotaryPositionEmbedding", "apply_rotary_pos_emb"),
}

_load, __dir__ = lazy_package(
    __name__, EXPORTS, ("dot_product_attention", "inference", "multi_head_attention", "rope")
)


def __getattr__(name: str) -> Any:
    if name == "_SplitAlongDim":
        from ..utils import SplitAlongDim

        return SplitAlongDim
    return _load(name)
