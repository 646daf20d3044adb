"""The plugin of the entry points' commands. Loading it imports neither torch nor Megatron."""

from __future__ import annotations

from accel_bridge.plugin import Check, Command, hookimpl

_GROUP = "Train"


@hookimpl
def accel_bridge_commands() -> list[Command]:
    """Make a tokenizer, prepare data, look into it, train on it."""
    return [
        Command(
            "tokenizer",
            "learn a tokenizer from your text: vocab.json, merges.txt, tokenizer.json",
            "accel_bridge.pretrain.preprocess:tokenizer_main",
            _GROUP,
        ),
        Command(
            "preprocess",
            "text to Megatron's .bin and .idx; the flags of tools/preprocess_data.py",
            "accel_bridge.pretrain.preprocess:main",
            _GROUP,
        ),
        Command(
            "inspect",
            "look into a data set of .bin and .idx",
            "accel_bridge.pretrain.preprocess:inspect_main",
            _GROUP,
        ),
        Command(
            "pretrain",
            "train a GPT: torchrun with Megatron's own arguments",
            "accel_bridge.pretrain.command:main",
            _GROUP,
        ),
    ]


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """What is wrong with the data and the tokenizer of a training."""
    from accel_bridge.pretrain import checks

    return list(checks.CHECKS)
