"""NeMo-RL's Megatron policy worker beside Transformers: nemo_rl_worker.py MODEL TP PP [TRAINED]

Configured by its example of GRPO. TRAINED, if it is not MODEL, is what NeMo-RL trains.
"""

from __future__ import annotations

import os
import sys

import numpy
import policy
import ray
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer


def train(rank: int, model: str, tensor: int, pipeline: int, trained: str) -> None:
    """What one rank does, in an actor of Ray."""
    from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict
    from nemo_rl.distributed.named_sharding import NamedSharding
    from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl
    from nemo_rl.utils.config import load_config, register_omegaconf_resolvers

    register_omegaconf_resolvers()
    example = load_config("RL/examples/configs/grpo_math_1B_megatron.yaml")
    optimizer = {"lr": policy.RATE, "min_lr": policy.RATE, "weight_decay": 0.0, "bf16": False}
    betas = {"adam_beta1": policy.BETAS[0], "adam_beta2": policy.BETAS[1]}
    ours = {
        "model_name": trained,
        "precision": "float32",
        "train_global_batch_size": len(policy.LENGTHS),
        "train_micro_batch_size": 2,
        # Its policy packs before its workers are called.
        "sequence_packing": {"enabled": False},
        "megatron_cfg": {
            "tensor_model_parallel_size": tensor,
            "pipeline_model_parallel_size": pipeline,
            "sequence_parallel": tensor > 1,
            "train_iters": policy.STEPS,
            "optimizer": optimizer | betas,
            "scheduler": {"lr_warmup_iters": 0, "lr_warmup_init": 0.0},
        },
    }
    config = OmegaConf.merge(example, {"policy": ours})
    layout = numpy.arange(tensor * pipeline).reshape(pipeline, -1, 1, tensor)
    names = ["pipeline_parallel", "data_parallel", "context_parallel", "tensor_parallel"]
    worker = MegatronPolicyWorkerImpl(
        OmegaConf.to_container(config.policy, resolve=True),
        AutoTokenizer.from_pretrained(trained),
        init_reference_model=False,
        worker_sharding_annotations=NamedSharding(layout=layout, names=names),
    )
    loss = ClippedPGLossFn(ClippedPGLossConfig(reference_policy_kl_penalty=0.0))
    attention, answers = policy.masks()

    def batch(**more: torch.Tensor) -> BatchedDataDict:
        lengths = attention.sum(1).to(torch.int32)
        rows = {"input_ids": policy.padded(policy.rows()), "input_lengths": lengths}
        return BatchedDataDict({**rows, **more})

    def log_probs() -> torch.Tensor:
        return worker.get_logprobs(data=batch())["logprobs"][:, 1:]

    def step(before: torch.Tensor) -> None:
        old = torch.nn.functional.pad(before, (1, 0))
        data = batch(
            token_mask=answers.float(),
            sample_mask=torch.ones(len(answers)),
            advantages=torch.tensor(policy.ADVANTAGES)[:, None].expand(old.shape),
            prev_logprobs=old,
            generation_logprobs=old,
            reference_policy_logprobs=old,
        )
        worker.train(data, loss)

    policy.beside(model, log_probs, step)


if __name__ == "__main__":
    model, tensor, pipeline, trained = (*sys.argv[1:], sys.argv[1])[:4]
    ranks = int(tensor) * int(pipeline)
    ray.init(num_gpus=ranks, num_cpus=ranks, include_dashboard=False)
    common = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29641"}
    start = ray.remote(num_gpus=1)(train)
    waits = []
    for rank in range(ranks):
        environ = {**common, "RANK": str(rank), "NRL_MEGATRON_CHECKPOINT_DIR": f"{os.getcwd()}/out"}
        environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
        waits.append(
            start.options(runtime_env={"env_vars": environ}).remote(
                rank, model, int(tensor), int(pipeline), trained
            )
        )
    ray.get(waits)
    ray.shutdown()
