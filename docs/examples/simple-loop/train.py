"""A training loop of one's own on megatron-core: no argument parser, no megatron.training.

Tensor parallel over all processes, on whatever accel_bridge finds:

    torchrun --nproc-per-node 2 train.py

The model, the data, the schedule, the gradients and the checkpoint are megatron-core's; the loop
is this file's. Legend: b batch, s sequence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import accel_bridge.auto  # noqa: F401  (before Megatron)

# isort: split

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDatasetConfig, MockGPTDataset
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.tokenizers import MegatronTokenizer
from megatron.core.transformer.transformer_config import TransformerConfig

LENGTH = 64
VOCABULARY = 128
BATCH = 8
ITERATIONS = int(os.environ.get("ITERATIONS", "100"))
OUT = Path(os.environ.get("OUT", "simple-loop"))

Batch = dict[str, torch.Tensor]


def build_model() -> GPTModel:
    """A GPT of two layers."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        pipeline_dtype=torch.float32,
    )
    return GPTModel(config, get_gpt_layer_local_spec(), VOCABULARY, LENGTH)


def batches() -> Iterator[Batch]:
    """Megatron's mock data: rows of tokens that count upwards."""
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=LENGTH,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        mid_level_dataset_surplus=0.005,
        tokenizer=MegatronTokenizer.from_pretrained(
            metadata_path={"library": "null-text"}, vocab_size=VOCABULARY - 1
        ),
    )
    samples = [ITERATIONS * BATCH, None, None]
    train, _, _ = BlendedMegatronDatasetBuilder(
        MockGPTDataset, samples, lambda: True, config
    ).build()
    return iter(torch.utils.data.DataLoader(train, batch_size=BATCH))


def loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, Batch]:
    """Mean over the tokens that count; losses and mask are [b, s]."""
    value = (losses.float() * mask).sum() / mask.sum()
    return value, {"lm loss": value.detach()}


def forward(data: Iterator[Batch], model: torch.nn.Module) -> tuple[torch.Tensor, partial]:  # type: ignore[type-arg]
    """What Megatron's schedule calls for each micro batch."""
    batch = {key: value.cuda() for key, value in next(data).items()}
    output = model(
        batch["tokens"],
        batch["position_ids"],
        batch.get("attention_mask"),
        labels=batch["labels"],
    )
    return output, partial(loss, batch["loss_mask"])


def main() -> None:
    """Train, save, load, and compare what was loaded."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=torch.distributed.get_world_size()
    )
    model_parallel_cuda_manual_seed(123)
    is_first = torch.distributed.get_rank() == 0

    gpt = build_model().cuda()
    model = DistributedDataParallel(gpt.config, DistributedDataParallelConfig(), gpt)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule, data = get_forward_backward_func(), batches()
    for iteration in range(1, ITERATIONS + 1):
        model.zero_grad_buffer()
        (result,) = schedule(
            forward_step_func=forward,
            data_iterator=data,
            model=model,
            num_microbatches=1,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
            forward_only=False,
        )
        finalize_model_grads([model])
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad.to(parameter.dtype)
        optimizer.step()
        if is_first:
            print(f"iteration {iteration}/{ITERATIONS} | lm loss: {result['lm loss']:.6f} |")

    directory = OUT / "checkpoint"
    if is_first:
        directory.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    dist_checkpointing.save(gpt.sharded_state_dict(prefix=""), str(directory))
    fresh = build_model().cuda()
    fresh.load_state_dict(
        dist_checkpointing.load(fresh.sharded_state_dict(prefix=""), str(directory))
    )
    for trained, loaded in zip(gpt.parameters(), fresh.parameters(), strict=True):
        # Rank 0 saves what all ranks share; on a GPU their copies may differ in the last digits.
        if is_first or getattr(trained, "tensor_model_parallel", False):
            assert torch.equal(trained, loaded)
    if is_first:
        print(f"The model that was loaded from {directory} is the one that was trained.")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
