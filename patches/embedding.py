"""The vocabulary embedding: its weight gradient is added to the rows that were used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch, unless_faster
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import EMBEDDING_GRADIENT

    upstream = context.original
    kernel = context.host.kernel(EMBEDDING_GRADIENT)

    @functools.wraps(upstream)
    def forward(self: Any, input_: Any) -> Any:
        """Token ids [b, s] -> [b, s, h], or this rank's part of [s, b, h]."""
        from accel_bridge.patches.modules.embedding import embedding_forward, is_fused

        if is_fused(self):
            return embedding_forward(self, input_, kernel)
        return upstream(self, input_)

    return forward


PATCHES = (
    megatron_patch(
        id="embedding-gradient",
        target="megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward",
        requires="megatron-core>=0.18",
        elsewhere="before 0.18 an embedding does not know whether gradients are fused; it only "
        "saves time",
        kind=Kind.REPLACE,
        make=_make,
        why="even with --gradient-accumulation-fusion, every micro batch fills a gradient of the "
        "whole vocabulary with zeros and adds all of it to main_grad, for a few thousand rows",
        removed_when="upstream's gradient accumulation fusion includes the embedding",
        loses="a few per cent of a step, and memory for gradients of the whole vocabulary",
        skip_when=unless_faster("embedding_gradient"),
        kernels=("embedding_gradient",),
    ),
)
