"""The query's norm of latent attention without a compressed query."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.patches import norm

pytestmark = pytest.mark.megatron


def resolved(q_lora_rank: int | None, *, patched: bool) -> Any:
    """What Megatron builds for local layers with --qk-layernorm."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import MLATransformerConfig
    from megatron.core.transformer.mla_qk_norm_config import QKNormConfigResolver

    config = MLATransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=16,
        qk_layernorm=True,
        normalization="RMSNorm",
        transformer_impl="local",
    )
    layer = get_gpt_layer_local_spec(
        multi_latent_attention=True, qk_layernorm=True, normalization="RMSNorm"
    )
    resolver = QKNormConfigResolver(config, layer.submodules.self_attention.submodules)
    upstream = QKNormConfigResolver.resolve
    context: Any = SimpleNamespace(original=upstream)
    return norm._make_resolver(context)(resolver) if patched else upstream(resolver)


def test_a_norm_that_nothing_uses_is_left_out() -> None:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear
    from megatron.core.transformer.identity_op import IdentityOp

    with pytest.raises(ValueError, match="it will not be used"):
        resolved(None, patched=False)
    found = resolved(None, patched=True)
    assert found["linear_q_proj"] is ColumnParallelLinear
    assert found["q_layernorm"] is IdentityOp
    assert found["kv_layernorm"] is not IdentityOp


def test_a_norm_that_is_used_stays() -> None:
    assert resolved(24, patched=True) == resolved(24, patched=False)
