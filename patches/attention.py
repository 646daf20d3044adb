"""Core attention of the local spec: Transformer Engine's, which writes no scores to memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch, without_transformer_engine
from accel_bridge.patching import Kind, PatchContext


def _make_init(context: PatchContext) -> Callable[..., None]:
    upstream = context.original
    local: type = context.module.DotProductAttention
    given = context.argument("config")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        """Become Transformer Engine's attention. A subclass stays upstream's."""
        config = given.get((self, *args), kwargs)
        # Megatron turns all of the library's attention off for --attention-backend local.
        refused = getattr(config.attention_backend, "name", "") == "local"
        if type(self) is not local or refused:
            upstream(self, *args, **kwargs)
            return
        from accel_bridge.patches.modules import attention

        made: Any = attention.DotProductAttention
        self.__class__ = made
        made.__init__(self, *args, **kwargs)

    return __init__


PATCHES = (
    megatron_patch(
        id="core-attention",
        target="megatron.core.transformer.dot_product_attention:DotProductAttention.__init__",
        kind=Kind.WRAP,
        make=_make_init,
        why="it writes the whole score matrix, and has no context parallelism, packed sequences "
        "or head sizes of multi-latent attention",
        removed_when="upstream's local spec uses an attention that does not write its scores",
        loses="attention memory grows with the square of the sequence; --context-parallel-size "
        "above 1 and --multi-latent-attention stop with an error",
        uses=("config",),
        skip_when=without_transformer_engine,
    ),
)
