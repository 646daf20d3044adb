"""The vocabulary embedding: its weight gradient is added to the rows that were used."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.kernels import EMBEDDING_GRADIENT
from accel_bridge.patches._faster import unless_faster
from accel_bridge.patches._upstream import REQUIRES, SOURCE
from accel_bridge.patching import Kind, Patch, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
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
    Patch(
        id="embedding-gradient",
        target="megatron.core.tensor_parallel.layers:VocabParallelEmbedding.forward",
        kind=Kind.WRAP,
        make=_make,
        why="with --gradient-accumulation-fusion, too, every micro batch fills a gradient of the "
        "whole vocabulary with zeros and adds all of it to main_grad, for a few thousand rows",
        upstream=f"{SOURCE}/core/tensor_parallel/layers.py",
        removed_when="upstream's gradient accumulation fusion includes the embedding",
        loses="a few per cent of a step, and memory for gradients of the whole vocabulary",
        requires=REQUIRES,
        parameters=("self", "input_"),
        skip_when=unless_faster("embedding_gradient"),
        kernels=("embedding_gradient",),
    ),
)
