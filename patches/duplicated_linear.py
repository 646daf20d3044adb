"""Weights that every tensor-parallel rank has, as those of latent attention's down projections.

Transformer Engine marks each weight of its linear layers as a part of a larger one. Megatron counts
such parts on every rank in the norm of the gradients, and whole weights on one rank only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    layer, mode = context.argument("self"), context.argument("parallel_mode")

    @functools.wraps(upstream)
    def init(*args: Any, **kwargs: Any) -> None:
        """As upstream; what is duplicated is no part, as Megatron says itself since 0.17."""
        upstream(*args, **kwargs)
        if mode.get(args, kwargs) == "duplicated":
            for parameter in layer.get(args, kwargs).parameters():
                parameter.tensor_model_parallel = False

    return init


PATCHES = (
    megatron_patch(
        id="duplicated-linear",
        target="megatron.core.extensions.transformer_engine:TELinear.__init__",
        requires="megatron-core>=0.12,<0.17",
        elsewhere="since 0.17 Megatron marks these weights itself",
        kind=Kind.WRAP,
        make=_make,
        why="weights that all tensor-parallel ranks have count once for each in the gradient norm: "
        "that of latent attention is 2% too large in two ranks, and gradients are clipped by it",
        removed_when="Megatron before 0.17 is not supported",
        loses="multi-latent attention and latent experts are clipped otherwise in tensor-parallel "
        "layouts than in one process",
        uses=("self", "parallel_mode"),
    ),
)
