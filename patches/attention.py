"""Core attention: the backend's kernel in every spec, with context parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.kernels import ATTENTION
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patches.attention_flags import CHOICE, AttentionChoice
from accel_bridge.patching import Kind, Patch, PatchContext


def _make_forward(context: PatchContext) -> Callable[..., Any]:
    kernel = context.host.kernel(ATTENTION)
    choice = context.host.once(CHOICE, AttentionChoice)

    def forward(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        attn_mask_type: Any = None,
        attention_bias: Any = None,
        packed_seq_params: Any = None,
    ) -> Any:
        """[sq, b, n, d] -> [sq, b, n * d] on the backend's attention kernel."""
        from accel_bridge.patches.modules.attention import attention_forward

        return attention_forward(
            self,
            query,
            key,
            value,
            attention_mask,
            attn_mask_type,
            attention_bias,
            packed_seq_params,
            kernel=kernel,
            layout=choice.layout,
        )

    return forward


def _make_init(context: PatchContext) -> Callable[..., None]:
    upstream = context.original
    host = context.host

    def __init__(
        self: Any,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
        num_splits: int | None = None,
    ) -> None:
        """Build the module whatever the context parallel size is.

        The last three are parameters of ``TEDotProductAttention``: head sizes of keys and values,
        which the tensors tell by themselves, and a hint for its kernel.
        """
        from accel_bridge.patches.modules.attention import without_context_parallel

        if softmax_scale is None and k_channels is not None:
            softmax_scale = k_channels**-0.5
        upstream(
            self,
            without_context_parallel(config),
            layer_number,
            attn_mask_type,
            attention_type,
            attention_dropout=attention_dropout,
            softmax_scale=softmax_scale,
            cp_comm_type=cp_comm_type,
            pg_collection=pg_collection,
        )
        self.config = config
        if config.context_parallel_size > 1 and cp_comm_type not in (None, "all_gather"):
            host.say_once(
                f"context parallelism gathers keys and values; cp_comm_type {cp_comm_type!r} "
                "names a way to communicate, the result is the same"
            )

    return __init__


PATCHES = (
    Patch(
        id="core-attention",
        target="megatron.core.transformer.dot_product_attention:DotProductAttention.forward",
        kind=Kind.REPLACE,
        make=_make_forward,
        why="it writes the whole score matrix; the backend's kernel does not, and knows GQA, "
        "windows and packed sequences",
        upstream=f"{SOURCE}/core/transformer/dot_product_attention.py",
        removed_when="upstream's local spec uses torch's scaled_dot_product_attention",
        loses="attention memory grows with the square of the sequence; no context parallelism",
        requires=REQUIRES,
        parameters=(
            "self",
            "query",
            "key",
            "value",
            "attention_mask",
            "attn_mask_type",
            "attention_bias",
            "packed_seq_params",
        ),
        kernels=("attention",),
    ),
    Patch(
        id="core-attention-init",
        target="megatron.core.transformer.dot_product_attention:DotProductAttention.__init__",
        kind=Kind.WRAP,
        make=_make_init,
        why="it asserts context parallel size 1, which core-attention does not need, and takes no "
        "head sizes, which multi-latent attention passes",
        upstream=f"{SOURCE}/core/transformer/dot_product_attention.py",
        removed_when="upstream's local attention supports context parallelism",
        loses="--context-parallel-size above 1 and --multi-latent-attention stop",
        requires=REQUIRES,
        parameters=(
            "self",
            "config",
            "layer_number",
            "attn_mask_type",
            "attention_type",
            "attention_dropout",
            "softmax_scale",
            "cp_comm_type",
            "pg_collection",
        ),
        kernels=("attention",),
    ),
)
