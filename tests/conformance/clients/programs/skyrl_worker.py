"""SkyRL's Megatron policy worker beside Transformers: skyrl_worker.py MODEL TP PP [TRAINED]

TRAINED, if it is not MODEL, is what SkyRL trains.
"""

from __future__ import annotations

import os
import sys

import policy
import torch
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils.ppo_utils import (
    apply_loss_reduction_to_advantages_minibatch,
)
from skyrl.backends.skyrl_train.workers.megatron.megatron_worker import MegatronPolicyWorkerBase
from skyrl.train.config import SkyRLTrainConfig

model, tensor, pipeline, trained = (*sys.argv[1:], sys.argv[1])[:4]
config = SkyRLTrainConfig().trainer
config.bf16 = False
config.strategy = "megatron"
config.micro_train_batch_size_per_gpu = config.micro_forward_batch_size_per_gpu = 2
config.algorithm.temperature = 1.0
config.algorithm.use_kl_loss = False
config.policy.optimizer_config.lr = policy.RATE
config.policy.optimizer_config.adam_betas = list(policy.BETAS)
config.policy.optimizer_config.weight_decay = 0.0
megatron = config.policy.megatron_config
megatron.tensor_model_parallel_size = int(tensor)
megatron.pipeline_model_parallel_size = int(pipeline)
megatron.optimizer_config_kwargs |= {"bf16": False, "params_dtype": "float32"}
local, address, port = (os.environ[name] for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"))
worker = MegatronPolicyWorkerBase(
    cfg=config,
    world_size=int(os.environ["WORLD_SIZE"]),
    rank=int(os.environ["RANK"]),
    local_rank=int(local),
    master_addr=address,
    master_port=int(port),
    sequence_parallel_size=1,
)
# As every actor of Ray has one device, it takes the first.
os.environ["LOCAL_RANK"] = local
worker.init_worker_process_group()
worker.init_model(trained)
attention, answers = (mask.long() for mask in policy.masks())
answered = answers[:, policy.PROMPT :]


def batch(**more: torch.Tensor) -> TrainingInputBatch:
    made = TrainingInputBatch(
        {
            "sequences": policy.padded(policy.rows()),
            "attention_mask": attention,
            "loss_mask": answered,
            "response_mask": answered,
            **more,
        }
    )
    made.metadata = {"response_length": answered.shape[1]}
    return made


def log_probs() -> torch.Tensor:
    rows = [one["logprobs"] for one in worker.forward(batch()).loss_fn_outputs]
    return torch.nn.functional.pad(torch.tensor(rows), (policy.PROMPT - 1, 0))


def step(before: torch.Tensor) -> None:
    old = before[:, policy.PROMPT - 1 :]
    advantages = apply_loss_reduction_to_advantages_minibatch(
        torch.tensor(policy.ADVANTAGES)[:, None].expand(old.shape),
        loss_mask=answered,
        loss_reduction="token_mean",
        micro_batch_size=2,
        max_seq_len=old.shape[1],
    )
    worker.forward_backward(batch(action_log_probs=old, advantages=advantages))
    worker.optim_step()


policy.beside(model, log_probs, step)
