"""Paths in Megatron's arguments, checked before anything is built from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel_bridge.patches.checkpoints import TRACKER, check_iteration
from accel_bridge.patching.arguments import ArgumentError, flag_of

#: Arguments of the tokenizer that name a file or folder on this machine.
_TOKENIZER_FILES = ("vocab_file", "merge_file")


def check_tokenizer(args: Any) -> None:
    """Files of the tokenizer that are named must exist.

    ``--tokenizer-model`` may also be the name of a model on a hub; one that looks like a path
    (absolute, or starting with a dot) must exist.

    :raises ArgumentError: for the first that does not.
    """
    named = [(name, getattr(args, name, None)) for name in _TOKENIZER_FILES]
    model = getattr(args, "tokenizer_model", None)
    if model is not None and str(model).startswith(("/", ".", "~")):
        named.append(("tokenizer_model", model))
    for name, path in named:
        if path is not None and "://" not in str(path) and not Path(path).expanduser().exists():
            raise ArgumentError(
                "The tokenizer is not there.",
                evidence=f"{flag_of(name)} {path} does not exist",
                next="give the path of an existing file",
            )


def check_checkpoint(args: Any) -> None:
    """A folder named with --load and --exit-on-missing-checkpoint must hold a checkpoint.

    Without that flag Megatron starts from scratch, with a warning, when there is none: scripts
    that resume rely on it. One that is named there must be there.

    :raises ArgumentError: when ``--pretrained-checkpoint`` or a required ``--load`` is not there,
        or the checkpoint that either names.
    """
    for name, required in (
        ("pretrained_checkpoint", True),
        ("load", getattr(args, "exit_on_missing_checkpoint", False)),
    ):
        folder = getattr(args, name, None)
        if folder is None or "://" in str(folder):
            continue
        step = getattr(args, "ckpt_step", None) if name == "load" else None
        check_iteration(Path(folder), step)
        if required and not (Path(folder) / TRACKER).is_file():
            raise ArgumentError(
                "The checkpoint is not there.",
                evidence=f"{flag_of(name)} {folder} has no {TRACKER}",
                next="give the folder that --save wrote to",
            )
