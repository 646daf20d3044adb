"""A plugin with an injected fault, to show that the parity tests would see one.

It is also what a third party's patch looks like.
"""

from __future__ import annotations

from typing import Any

from accel_bridge import Backend, hookimpl
from accel_bridge.patching import Kind, Patch, PatchContext

#: Factor on the attention scale; training still looks healthy with it.
WRONG_SCALE = 1.1


def _make(context: PatchContext) -> Any:
    attend = context.original

    def forward(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
        num_splits: Any = None,
    ) -> Any:
        return attend(
            self,
            query * WRONG_SCALE,
            key,
            value,
            attention_mask,
            attn_mask_type,
            attention_bias,
            packed_seq_params,
        )

    return forward


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """Attention with a slightly wrong scale."""
    return [
        Patch(
            id="injected-scale",
            target="megatron.core.extensions.transformer_engine:TEDotProductAttention.forward",
            kind=Kind.WRAP,
            make=_make,
            why="an injected fault",
            upstream="tests/end_to_end/injected.py",
            removed_when="never: it is a test of the tests",
            loses="nothing",
        )
    ]
