"""A training recipe of Megatron-Bridge's own, scaled down: python recipe.py RECIPE [KEY=VALUE ...]

Recipes name a model on a hub. A directory of that name where it works is taken instead, as
Transformers does. `data=DIRECTORY` trains on its training.jsonl; `model=DIRECTORY` prints what the
forward pass of that model in Transformers makes of the first rows.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import megatron.bridge.recipes as recipes
import torch
from megatron.bridge.data.builders import (
    GPTSFTDatasetConfig,
    PromptCompletionSFTPreprocessingConfig,
)
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.state import GlobalState
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
from transformers import AutoModelForCausalLM

fp32 = torch.float32


def scaled_down(name: str, words: list[str], data: str) -> ConfigContainer:
    """The recipe with its overrides."""
    config: ConfigContainer = getattr(recipes, name)()
    config.mixed_precision = MixedPrecisionConfig(fp32=True, params_dtype=fp32, pipeline_dtype=fp32)
    if data:
        config.dataset = GPTSFTDatasetConfig(
            dataset_root=data,
            seq_length=64,
            preprocessing=PromptCompletionSFTPreprocessingConfig(
                prompt_column="input", completion_column="output", separator=" "
            ),
            do_validation=False,
            do_test=False,
            num_workers=0,
        )
    config = process_config_with_overrides(config, cli_overrides=words)
    config.model.seq_length = config.dataset.seq_length
    return config


def of_transformers(directory: str, batch: dict[str, torch.Tensor]) -> float:
    """Transformers' loss of a batch."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=fp32).eval()
    with torch.no_grad():
        logits = model(batch["tokens"]).logits
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), reduction="none"
    )
    mask = batch["loss_mask"].flatten().float()
    return float((losses * mask).sum() / mask.sum())


class Step:
    """Megatron-Bridge's own forward step; the first batch goes to Transformers too."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def __call__(
        self,
        state: GlobalState,
        data_iterator: Iterator[Any],
        model: Any,
        return_schedule_plan: bool = False,
    ) -> Any:
        if self.directory:
            batch = next(data_iterator)
            data_iterator = itertools.chain([batch], data_iterator)
            print(f"TRANSFORMERS {of_transformers(self.directory, batch):.7f}", flush=True)
            self.directory = ""
        return forward_step(state, data_iterator, model, return_schedule_plan)


def main(name: str, *words: str) -> None:
    """Train."""
    given = dict(word.split("=", 1) for word in words if word.startswith(("data=", "model=")))
    overrides = [word for word in words if not word.startswith(("data=", "model="))]
    config = scaled_down(name, overrides, given.get("data", ""))
    train = pretrain if "pretrain" in name else finetune
    train(config, Step(given.get("model", "")))


if __name__ == "__main__":  # checkpoints are written by a process that imports this file again
    main(*sys.argv[1:])
