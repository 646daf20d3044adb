"""ROLL's pipeline of supervised fine-tuning, or the same by hand with Transformers.

    roll_sft.py MODEL OUTPUT [TP PP]

Without TP and PP it is by hand. The loss of each step is in OUTPUT/logging.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA, BATCH, ROWS, RATE, BETA = "models/rows/training.jsonl", 4, 16, 1e-3, 0.95
Config = dict[str, object]


def by_hand(model: str) -> list[float]:
    """All rows of the data are equal, so any is a batch."""
    row = json.loads(Path(DATA).read_text().splitlines()[0])
    tokenizer = AutoTokenizer.from_pretrained(model)
    turns = [{"role": "user", "content": row["input"]}]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    turns.append({"role": "assistant", "content": row["output"]})
    whole = tokenizer.apply_chat_template(turns, tokenize=False).removesuffix("\n")
    tokens = torch.tensor([tokenizer(whole)["input_ids"]])
    labels = tokens.clone()
    labels[:, : len(tokenizer(prompt)["input_ids"])] = -100
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RATE, betas=(0.9, BETA), weight_decay=0.0)
    found = []
    for _ in range(ROWS // BATCH):
        loss = policy(tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


def worker(data: str, more: Config, tensor: int = 1, pipeline: int = 1, rows: int = 1) -> Config:
    """A trainer whose batch is ``BATCH`` of the file ``data``, ``rows`` at a time."""
    strategy = {
        "tensor_model_parallel_size": tensor,
        "sequence_parallel": tensor > 1,
        "pipeline_model_parallel_size": pipeline,
        "use_distributed_optimizer": True,
    }
    training = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": BATCH // rows,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": BETA,
        "weight_decay": 0.0,
    }
    files = {"file_name": [data], "template": "native", "preprocessing_num_workers": 1}
    return {
        "model_args": {"dtype": "fp32"},
        "training_args": training,
        "data_args": {**files, **more},
        "strategy_args": {"strategy_name": "megatron_train", "strategy_config": strategy},
        "device_mapping": f"list(range({tensor * pipeline}))",
        "infer_batch_size": 1,
    }


def logged(pipeline: type, settings: type, output: str, config: Config) -> list[dict[str, float]]:
    """What its Ray, its workers and its Megatron strategy log at each step."""
    import ray
    from dacite import from_dict

    places = {"output_dir": output, "logging_dir": f"{output}/logs", "save_steps": 1000}
    devices = torch.cuda.device_count()
    ray.init(num_gpus=devices, num_cpus=8, include_dashboard=False, namespace="roll")
    made = pipeline(from_dict(settings, {**places, **config}))
    made.run()
    ray.shutdown()
    return made.state.log_history


def with_roll(model: str, output: str, tensor: int, pipeline: int) -> list[float]:
    """The loss of each step."""
    from roll.pipeline.sft.sft_config import SFTConfig
    from roll.pipeline.sft.sft_pipeline import SFTPipeline

    rows = Path(output) / "rows.json"
    rows.write_text("\n".join(Path(DATA).read_text().splitlines()[:ROWS]))
    config = {
        "exp_name": "sft",
        "num_gpus_per_node": tensor * pipeline,
        "sequence_length": 128,
        "pretrain": model,
        "prompt_key": "input",
        "query_key": None,
        "response_key": "output",
        "sft_train": worker(str(rows), {}, tensor, pipeline),
    }
    return [row["sft_train/loss@sum"] for row in logged(SFTPipeline, SFTConfig, output, config)]


if __name__ == "__main__":
    model, output, *layout = sys.argv[1:]
    Path(output).mkdir(parents=True, exist_ok=True)
    losses = with_roll(model, output, *map(int, layout)) if layout else by_hand(model)
    text = "".join(f"{json.dumps({'loss': loss})}\n" for loss in losses)
    (Path(output) / "logging.jsonl").write_text(text)
    print(losses)
