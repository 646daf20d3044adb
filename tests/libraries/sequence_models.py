"""Trains a tiny model without softmax attention on the shims; run by test_sequence_models.

sequence_models.py KIND: prints one loss a line. ``plain`` and ``native`` take Megatron's other road
through the same model: its parts one by one, and its own chunks in PyTorch.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_block_with_experimental_attention_variant_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

LENGTH, VOCABULARY = 80, 64


def config(**own: Any) -> TransformerConfig:
    return TransformerConfig(
        num_layers=4,
        hidden_size=32,
        num_attention_heads=4,
        num_query_groups=2,
        normalization="RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        **own,
    )


def mamba(mem_eff: bool) -> torch.nn.Module:
    options = config(
        mamba_state_dim=8,
        mamba_head_dim=16,
        mamba_num_groups=2,
        use_mamba_mem_eff_path=mem_eff,
    )
    return HybridModel(
        options,
        hybrid_stack_spec,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        hybrid_layer_pattern="M*M-",
        position_embedding_type="rope",
    )


def delta(native: bool) -> torch.nn.Module:
    options = config(
        experimental_attention_variant="gated_delta_net",
        linear_attention_freq=2,
        linear_conv_kernel_dim=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        deterministic_mode=native,
    )
    spec = get_transformer_block_with_experimental_attention_variant_spec(options)
    return GPTModel(
        options,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        position_embedding_type="rope",
    )


@torch.no_grad()
def initialize(model: torch.nn.Module) -> None:
    """The same weights on every device; factors near one."""
    generator = torch.Generator().manual_seed(3)
    for name, weight in model.named_parameters():
        center = 1.0 if name.endswith(("norm.weight", "norm_weight")) else 0.0
        weight.copy_(center + 0.05 * torch.randn(weight.shape, generator=generator))


def main() -> None:
    kind = sys.argv[1]
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(names)
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    family, _, road = kind.partition("-")
    model = mamba(road != "plain") if family == "mamba" else delta(road == "native")
    model = model.cuda()
    initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=torch.Generator().manual_seed(2))
    tokens = tokens.cuda()
    positions = torch.arange(LENGTH).cuda().expand(2, -1)
    for _ in range(4):
        loss = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:]).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}")
    print("modules", *sorted({type(one).__name__ for one in model.modules()}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
