"""What the scripts of all models share: arguments, data sets, the training.

The bridge must be active before this module is imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.core.enums import ModelType
from megatron.training import inprocess_restart, pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.arguments import parse_and_validate_args

from accel_bridge.pretrain.gpt_data import check_data, datasets_provider
from accel_bridge.pretrain.gpt_step import forward_step


def train(model_config: Callable[[argparse.Namespace], Any], **options: Any) -> None:
    """Parse Megatron's arguments from the command line and train.

    :param model_config: Megatron's arguments -> the configuration of its model.
    :param options: more for ``megatron.training.pretrain``.
    """
    run, store = inprocess_restart.maybe_wrap_for_inprocess_restart(pretrain)
    args = parse_and_validate_args(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
    check_data(args)
    config = pretrain_cfg_container_from_args(args, model_config(args))
    # Every rank decides by itself whether it builds datasets.
    provider = partial(datasets_provider)
    provider.is_distributed = True  # type: ignore[attr-defined]
    run(config, provider, ModelType.encoder_or_decoder, forward_step, store=store, **options)
