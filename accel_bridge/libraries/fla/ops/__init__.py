"""Linear attentions."""

from __future__ import annotations

from accel_bridge.libraries.names import lazy_package

__getattr__, __dir__ = lazy_package(
    __name__,
    {
        "gated_delta_product": ("chunk_gated_delta_product",),
        "gated_delta_rule": ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"),
        "simple_gla": ("chunk_simple_gla", "fused_recurrent_simple_gla"),
    },
    ("gated_delta_product", "gated_delta_rule", "simple_gla"),
)
