"""AReaL's Megatron actor beside Transformers: areal_actor.py MODEL BACKEND [TRAINED]

TRAINED, if it is not MODEL, is what AReaL trains.
"""

from __future__ import annotations

import sys

import policy
import torch
from areal.api import FinetuneSpec
from areal.api.alloc_mode import ModelAllocation
from areal.api.cli_args import MegatronEngineConfig, OptimizerConfig, PPOActorConfig
from areal.engine.megatron_engine import MegatronPPOActor

model, backend, trained = (*sys.argv[1:], sys.argv[1])[:3]
actor = MegatronPPOActor(
    PPOActorConfig(
        backend=backend,
        experiment_name="test",
        trial_name="test",
        path=trained,
        dtype="float32",
        optimizer=OptimizerConfig(
            lr=policy.RATE, weight_decay=0.0, beta1=policy.BETAS[0], beta2=policy.BETAS[1]
        ),
        megatron=MegatronEngineConfig(bridge_type="megatron-bridge"),
        ppo_n_minibatches=1,
    )
)
actor.create_process_group(ModelAllocation.from_str(backend).parallel)
actor.initialize(
    addr=None,
    ft_spec=FinetuneSpec(total_train_epochs=1, dataset_size=128, train_batch_size=8),
)
attention, answers = policy.masks()
# Its row of a token is that of the token behind it.
behind = answers.roll(-1, 1)


def log_probs() -> torch.Tensor:
    actor.eval()
    data = {"input_ids": policy.padded(policy.rows()), "attention_mask": attention.bool()}
    return torch.cat(actor.compute_logp([data]))[:, :-1]


def step(before: torch.Tensor) -> None:
    old = torch.nn.functional.pad(before, (0, 1))
    advantages = torch.tensor(policy.ADVANTAGES)
    earned = advantages[:, None] * behind
    actor.ppo_update(
        [
            {
                "input_ids": policy.padded(policy.rows()),
                "attention_mask": attention.bool(),
                "loss_mask": behind,
                "rewards": advantages,
                "logprobs": old,
                "prox_logp": old,
                "advantages": earned,
                "kl_rewards": torch.zeros_like(earned),
                "tot_rewards": earned,
            }
        ]
    )


policy.beside(model, log_probs, step)
actor.destroy()
