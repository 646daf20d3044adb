"""Latent attention without a compressed query, whose norm then has nothing to normalise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original

    @functools.wraps(upstream)
    def resolve(self: Any) -> Any:
        """As upstream; the query's norm of the local layers is left out where nothing uses it."""
        config, layers = self.config, self.submodules
        if (
            self.has_q_lora
            or self.is_dsa
            or not config.qk_layernorm
            or config.qk_l2_norm
            or self.fused_norm_linear_impl is not None
            or self._is_trivial(layers.q_layernorm)
        ):
            return upstream(self)
        # With a compressed query its norm has a place: the key's part is resolved the same way.
        self.has_q_lora = True
        try:
            found = upstream(self)
        finally:
            self.has_q_lora = False
        from megatron.core.transformer.identity_op import IdentityOp

        return {
            **found,
            "linear_q_proj": layers.linear_q_proj or self.linear_impl,
            "linear_q_up_proj": IdentityOp,
            "q_layernorm": IdentityOp,
        }

    return resolve


PATCHES = (
    megatron_patch(
        id="latent-query-norm",
        target="megatron.core.transformer.mla_qk_norm_config:QKNormConfigResolver.resolve",
        requires="megatron-core>=0.19",
        elsewhere="before 0.19 the norm is left out where nothing uses it",
        kind=Kind.WRAP,
        make=_make,
        why="the local layers name a norm for the query with --qk-layernorm, and are then refused "
        "where the query is not compressed (no --q-lora-rank: DeepSeek V2-Lite, Moonlight)",
        removed_when="upstream's local layers name that norm only with --q-lora-rank",
        loses="such models cannot be built with --transformer-impl local",
        uses=("self",),
    ),
)
