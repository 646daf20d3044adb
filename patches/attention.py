"""Core attention: the backend's kernel in every spec, with context parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accel_bridge._attention_choice import CHOICE, AttentionChoice
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make_forward(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import ATTENTION

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
    given = context.argument("config")
    scale = context.argument("softmax_scale")
    communication = context.argument("cp_comm_type")

    def __init__(
        self: Any,
        *args: Any,
        k_channels: int | None = None,
        v_channels: int | None = None,
        num_splits: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Build the module for any context parallel size.

        The three named parameters are those of ``TEDotProductAttention``: head sizes of keys and
        values, which the tensors show themselves, and a hint for its kernel.
        """
        from accel_bridge.patches.modules.attention import without_context_parallel

        call: tuple[tuple[Any, ...], Mapping[str, Any]] = ((self, *args), kwargs)
        config, cp_comm_type = given.get(*call), communication.get(*call)
        if scale.get(*call) is None and k_channels is not None:
            call = scale.put(*call, k_channels**-0.5)
        positional, named = given.put(*call, without_context_parallel(config))
        upstream(*positional, **named)
        self.config = config
        if config.context_parallel_size > 1 and cp_comm_type not in (None, "all_gather"):
            host.say_once(
                f"context parallelism gathers keys and values; cp_comm_type {cp_comm_type!r} "
                "names a way to communicate, the result is the same"
            )

    return __init__


PATCHES = (
    megatron_patch(
        id="core-attention",
        target="megatron.core.transformer.dot_product_attention:DotProductAttention.forward",
        kind=Kind.REPLACE,
        make=_make_forward,
        why="it writes the whole score matrix; the backend's kernel does not, and supports GQA, "
        "windows and packed sequences",
        removed_when="upstream's local spec uses torch's scaled_dot_product_attention",
        loses="attention memory grows with the square of the sequence; no context parallelism",
        kernels=("attention",),
    ),
    megatron_patch(
        id="core-attention-init",
        target="megatron.core.transformer.dot_product_attention:DotProductAttention.__init__",
        kind=Kind.WRAP,
        make=_make_init,
        why="it asserts context parallel size 1, which core-attention does not need, and does not "
        "accept the head sizes that multi-latent attention passes",
        removed_when="upstream's local attention supports context parallelism",
        loses="--context-parallel-size above 1 and --multi-latent-attention stop with an error",
        uses=("config", "softmax_scale", "cp_comm_type"),
        kernels=("attention",),
    ),
)
