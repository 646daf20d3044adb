"""A training loop on megatron.core that is not Megatron's: own_loop.py [--injected] [--per-token].

As frameworks above Megatron write theirs: no arguments of Megatron, no ``megatron.training``.
Prints the loss and the gradient norm of each step on the last rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

STEPS, ROWS, LENGTH, VOCABULARY = 3, 4, 16, 64
PER_TOKEN = "--per-token" in sys.argv

torch.distributed.init_process_group()
parallel_state.initialize_model_parallel()
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
tensor_parallel.model_parallel_cuda_manual_seed(1)
torch.manual_seed(1)
config = TransformerConfig(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    calculate_per_token_loss=PER_TOKEN,
)
model = GPTModel(config, get_gpt_layer_local_spec(), VOCABULARY, LENGTH).cuda()
if "--injected" in sys.argv:
    with torch.no_grad():
        model.decoder.layers[1].mlp.linear_fc2.weight[0] += 0.1
settings = DistributedDataParallelConfig(use_distributed_optimizer=world > 1)
chunk = DistributedDataParallel(config, settings, model)
optimizer = get_megatron_optimizer(
    OptimizerConfig(lr=1e-2, clip_grad=0.5, use_distributed_optimizer=world > 1), [chunk]
)
config.finalize_model_grads_func = finalize_model_grads
draws = torch.Generator().manual_seed(2)
rows = torch.randint(VOCABULARY, (STEPS * ROWS, LENGTH + 1), generator=draws)


def batches() -> Iterator[torch.Tensor]:
    for row in rows.view(STEPS, world, ROWS // world, 1, LENGTH + 1)[:, rank].flatten(0, 1):
        yield row.cuda()


def forward(data: Iterator[torch.Tensor], part: torch.nn.Module) -> Any:
    row = next(data)
    positions = torch.arange(LENGTH, device=row.device)[None]
    hidden = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device=row.device).triu(1)
    losses = part(row[:, :-1], positions, hidden, labels=row[:, 1:])

    def mean(found: torch.Tensor) -> Any:
        total = torch.stack([found.sum(), found.new_tensor(found.numel())]).detach()
        if PER_TOKEN:
            return found.sum(), torch.tensor(found.numel(), device=found.device), {"loss": total}
        return found.mean(), {"loss": total}

    return losses, mean


data = batches()
for _ in range(STEPS):
    chunk.zero_grad_buffer()
    optimizer.zero_grad()
    found = get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=data,
        model=[chunk],
        num_microbatches=ROWS // world,
        seq_length=LENGTH,
        micro_batch_size=1,
        forward_only=False,
    )
    updated, norm, _ = optimizer.step()
    total = torch.stack([one["loss"] for one in found]).sum(0)
    torch.distributed.all_reduce(total)
    if rank == world - 1:
        print(float(total[0] / total[1]), float(norm), flush=True)
torch.distributed.destroy_process_group()
