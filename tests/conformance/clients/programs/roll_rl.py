"""ROLL's loop of reinforcement learning; what each step did, as `loop.py` reads it.

    roll_rl.py MODEL OUTPUT

Megatron trains, vLLM answers greedily, and Ray's workers reward an answer for its tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import roll_sft
from roll.distributed.executor.worker import Worker
from roll.distributed.scheduler.decorator import Dispatch, register
from roll.distributed.scheduler.protocol import DataProto
from transformers import AutoTokenizer

LENGTH, STEPS = 16, 3


class Reward(Worker):
    """It needs no model."""

    def __init__(self, worker_config):
        super().__init__(worker_config=worker_config)
        self.rank_info.dp_rank, self.rank_info.dp_size = 0, 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def initialize(self, pipeline_config):
        """Nothing to load."""

    @register(dispatch_mode=Dispatch.DP_MP_COMPUTE, clear_cache=False)
    def compute_rewards(self, data):
        """From 0 to 1 for each prompt and answer, by their tokens."""
        earned = (data.batch["input_ids"].sum(-1) % 7).float() / 7
        zeros = 0.0 * data.batch["responses"]
        names = {"token_level_rewards": zeros, "response_level_rewards": earned}
        return DataProto.from_dict({**names, "scores": earned})


def with_roll(model: str, output: str) -> list[float]:
    """The loss of each step; it writes the rows of each."""
    from roll.pipeline.rlvr.rlvr_config import RLVRConfig
    from roll.pipeline.rlvr.rlvr_pipeline import RLVRPipeline

    domain, native = {"math_rule": 1.0}, {"template": "native"}
    rows = [
        {"id": str(n), "messages": f'[{{"role": "user", "content": "What is {n} times seven?"}}]'}
        for n in range(2 * roll_sft.BATCH)
    ]
    more = {"tag": "t", "domain": "math_rule", "ground_truth": "1"}
    data = Path(output) / "rows.jsonl"
    data.write_text("".join(f"{json.dumps({**row, **more})}\n" for row in rows))
    generator = {
        "model_args": {"dtype": "fp32"},
        "data_args": native,
        "generating_args": {"max_new_tokens": LENGTH, "temperature": 0.0, "top_k": -1},
        "strategy_args": {
            "strategy_name": "vllm",
            "strategy_config": {"block_size": 16, "max_model_len": 128, "enforce_eager": True},
        },
        "device_mapping": "[1]",
    }
    reward = {
        "worker_cls": "roll_rl.Reward",
        "tag_included": ["t"],
        "model_args": {"model_name_or_path": model},
        "data_args": native,
        "world_size": 1,
    }
    config = {
        "exp_name": "rl",
        "save_logging_board_dir": f"{output}/",
        "num_gpus_per_node": 2,
        "max_steps": STEPS,
        "pretrain": model,
        "reward_pretrain": model,
        "rollout_batch_size": roll_sft.BATCH,
        "prompt_length": 64,
        "response_length": LENGTH,
        "num_return_sequences_in_group": 1,
        "adv_estimator": "reinforce",
        "enable_reference": False,
        "enable_old_logprobs_recompute": True,
        "init_kl_coef": 0.0,
        # Of one row ROLL would overwrite logits that are a view of their float32 product.
        "actor_train": roll_sft.worker(
            str(data), {"messages": "messages", "domain_interleave_probs": domain}, rows=2
        ),
        "actor_infer": generator,
        "rewards": {"math_rule": reward},
    }
    history = roll_sft.logged(RLVRPipeline, RLVRConfig, output, config)
    return [row["actor/pg_loss@sum"] for row in history]


def written(tokenizer, row: dict) -> dict:
    """A row of ROLL's as NeMo-RL writes one, but for the generator's log probabilities."""
    prompt = tokenizer(row["prompt"].replace(tokenizer.pad_token, ""))["input_ids"]
    before, length = len(prompt), sum(row["new_response_mask"])
    behind = 64 + LENGTH - before - length

    def padded(values: list, start: list) -> list:
        return start + values[:length] + [0] * behind

    zeros = [0] * before
    return {
        "token_ids": padded(tokenizer.convert_tokens_to_ids(row["response_tokens"]), prompt),
        "input_lengths": [before + length],
        "token_loss_mask": padded([1] * length, zeros),
        "prev_logprobs": padded(row["logprobs"], zeros),
        "advantages": [sum(row["token_rewards"])] * (64 + LENGTH),
        "rewards": [row["reward"]],
    }


if __name__ == "__main__":
    model, output = sys.argv[1:]
    Path(output).mkdir(parents=True, exist_ok=True)
    for loss in with_roll(model, output):
        print(f"STEP Loss: {loss}")
    tokenizer = AutoTokenizer.from_pretrained(model)
    for number, path in enumerate(sorted(Path(output).glob("data_*.jsonl")), 1):
        rows = (written(tokenizer, json.loads(line)) for line in path.read_text().splitlines())
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (Path(output) / f"step{number}.jsonl").write_text(text)
