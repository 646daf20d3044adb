"""Prints the number of norm parameters of a two-layer GPT in both specs; run as a script."""

from __future__ import annotations

import os

import accel_bridge.auto  # noqa: F401

# isort: split
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer import TransformerConfig


def main() -> None:
    """Build both models and count."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    specs = {
        "local": get_gpt_layer_local_spec(),
        "transformer_engine": get_gpt_layer_with_transformer_engine_spec(),
    }
    for name, spec in specs.items():
        config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=2)
        model = GPTModel(config, spec, vocab_size=32, max_sequence_length=8)
        norms = [
            parameter
            for parameter, _ in model.named_parameters()
            if "layernorm" in parameter.replace("_", "")
        ]
        print(f"norms:{name} {len(norms)}")
    torch.distributed.destroy_process_group()


main()
