"""Checkpoints that Megatron would take for something else: no iteration, another vocabulary,
other weight shards; and the paths in its arguments, checked before anything is built from them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches._variables import CHECKSUMS
from accel_bridge.patches.checksums import damaged, recorded
from accel_bridge.patching import Kind, PatchContext, before
from accel_bridge.patching.host import ArgumentError, flag_of

#: The file that says which checkpoint of a directory is the latest that is whole.
TRACKER: Final = "latest_checkpointed_iteration.txt"


def check_tracker(tracker: Path) -> None:
    """The file must hold the number of an iteration, or the word ``release``.

    :raises ArgumentError: it holds something else, or cannot be read.
    """
    try:
        text = tracker.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise _refused(tracker, str(error)) from error
    if text == "release" or (text.isascii() and text.isdecimal() and len(text) < 19):
        return
    raise _refused(tracker, f"it holds {text[:60]!r}" if text else "it is empty")


def _refused(tracker: Path, evidence: str) -> ArgumentError:
    there = sorted(path.name for path in tracker.parent.glob("iter_*") if path.is_dir())
    whole = [name for name in there if _is_whole(tracker.parent / name)]
    step = f"echo {int(whole[-1][5:])} > {tracker}" if whole else "give --load another directory"
    return ArgumentError(
        f"{tracker} does not say which checkpoint is the latest.",
        evidence=(evidence, f"checkpoints there: {', '.join(there) or 'none'}"),
        next=f"{step}, or start anew without --load",
    )


def _is_whole(directory: Path) -> bool:
    """Written last: the metadata of a distributed checkpoint; any shard of another kind."""
    if not directory.name[5:].isdecimal():
        return False
    return (directory / "metadata.json").is_file() or any(directory.glob("mp_rank_*/*"))


def checkpoint_of(directory: Path, step: int | None = None) -> Path | None:
    """The checkpoint that would be loaded from ``directory``; None where none is named.

    :param step: of ``--ckpt-step``, in place of the latest.
    :raises ArgumentError: the file that names it is garbled.
    """
    if step:
        return directory / f"iter_{step:07d}"
    tracker = directory / TRACKER
    if not os.path.lexists(tracker):
        return None
    check_tracker(tracker)
    text = tracker.read_text(encoding="utf-8").strip()
    return directory / ("release" if text == "release" else f"iter_{int(text):07d}")


def check_iteration(directory: Path, step: int | None = None) -> None:
    """The checkpoint that would be loaded from ``directory`` must be there.

    :param step: of ``--ckpt-step``, in place of the latest.
    :raises ArgumentError: it is not, or the file that names it is garbled.
    :raises DamagedCheckpoint: files of it are missing.
    """
    checkpoint = checkpoint_of(directory, step)
    if checkpoint is None:
        return  # Megatron starts from scratch, and says so
    if not checkpoint.is_dir():
        source = f"--ckpt-step {step}" if step else f"{directory / TRACKER} names it"
        raise _refused_directory(directory, checkpoint.name, source)
    # What Megatron finds out without one of these files is something else each time.
    listed = recorded(checkpoint) if CHECKSUMS.read() else {}
    if lost := [f"{one}: not there" for one in listed if not (checkpoint / one).is_file()]:
        raise damaged(checkpoint, lost)


def _refused_directory(directory: Path, name: str, source: str) -> ArgumentError:
    there = sorted(path.name for path in directory.glob("iter_*") if _is_whole(path))
    if there:
        step = f"--ckpt-step {int(there[-1][5:])} loads {there[-1]}"
    else:
        step = "give --load another directory, or start anew without it"
    return ArgumentError(
        f"The checkpoint {directory / name} is not there.",
        evidence=(source, f"whole checkpoints there: {', '.join(there) or 'none'}"),
        next=step,
    )


def vocabulary_differs(stored: Any, args: Any) -> bool:
    """Whether two runs' arguments mean vocabularies of different sizes.

    Padding depends on the layout, so each padded size stands for a range of sizes.
    """
    sizes = [getattr(one, "vocab_size", None) for one in (stored, args)]
    if all(isinstance(size, int) for size in sizes):
        return sizes[0] != sizes[1]
    ranges = []
    for one in (stored, args):
        padded = getattr(one, "padded_vocab_size", None)
        if not isinstance(padded, int):
            return False
        multiple = getattr(one, "make_vocab_size_divisible_by", None) or 1
        multiple *= getattr(one, "tensor_model_parallel_size", None) or 1
        ranges.append((padded - multiple, padded))
    (low, high), (other_low, other_high) = ranges
    return high <= other_low or other_high <= low


def _sizes(args: Any) -> str:
    names = ("vocab_size", "padded_vocab_size", "tokenizer_type")
    values = {name: getattr(args, name, None) for name in names}
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


#: What divides a weight: tensor parallelism, and 0.19's weight shards beyond it.
_DIVIDES: Final = ("tensor_model_parallel_size", "gtp_weight_remat_size")
_DIVIDES_EXPERTS: Final = ("expert_tensor_parallel_size", "expert_gtp_weight_remat_size")


def check_weight_shards(stored: Any, here: Any) -> None:
    """A gate's rows must be divided as they were.

    Megatron halves each rank's rows into gate and rest, as if they were tensor parallel alone; of
    weight shards one rank has rows of one half only, and both are mixed where the sizes change.

    :raises ArgumentError: the two runs' arguments divide them otherwise.
    """
    gated = getattr(here, "swiglu", False) or getattr(here, "quick_geglu", False)
    for names in (_DIVIDES, _DIVIDES_EXPERTS) if gated else ():
        old, new = ([getattr(one, name, None) or 1 for name in names] for one in (stored, here))
        if old != new and max(old[1], new[1]) > 1:
            raise ArgumentError(
                "Megatron would read this checkpoint's gated weights in a wrong order.",
                evidence=[
                    f"{where}: " + ", ".join(map("{} {}".format, names, sizes))
                    for where, sizes in (("checkpoint", old), ("this run", new))
                ],
                next="give the sizes that it was saved with; --tensor-parallel-num-weight-shards "
                "(experts: --expert-tensor-parallel-num-weight-shards) is their product",
            )


def _check_arguments(context: PatchContext, stored: Any) -> None:
    here = context.module.get_args()
    check_weight_shards(stored, here)
    if vocabulary_differs(stored, here):
        raise ArgumentError(
            "The checkpoint is of another vocabulary size.",
            evidence=(f"checkpoint: {_sizes(stored)}", f"this run: {_sizes(here)}"),
            next="give the tokenizer that the checkpoint was trained with; --finetune takes its "
            "weights as far as they fit",
        )


PATCHES = (
    megatron_patch(
        id="checkpoint-vocabulary",
        target="megatron.training.checkpointing:check_checkpoint_args",
        kind=Kind.WRAP,
        make=before(_check_arguments),
        why="a checkpoint of another vocabulary, or a gate's of other weight shards, loads wrongly",
        removed_when="upstream compares them",
        loses="training goes on with wrong weights",
        uses=("checkpoint_args",),
    ),
)


#: Arguments of the tokenizer that name a file or directory on this machine.
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
    """A directory named with --load and --exit-on-missing-checkpoint must hold a checkpoint.

    Without that flag Megatron starts from scratch, with a warning, when there is none: scripts
    that resume rely on it. One that is named there must be there.

    :raises ArgumentError: when ``--pretrained-checkpoint`` or a required ``--load`` is not there,
        or the checkpoint that either names.
    """
    for name, required in (
        ("pretrained_checkpoint", True),
        ("load", getattr(args, "exit_on_missing_checkpoint", False)),
    ):
        directory = getattr(args, name, None)
        if directory is None or "://" in str(directory):
            continue
        step = getattr(args, "ckpt_step", None) if name == "load" else None
        check_iteration(Path(directory), step)
        if required and not (Path(directory) / TRACKER).is_file():
            raise ArgumentError(
                "The checkpoint is not there.",
                evidence=f"{flag_of(name)} {directory} has no {TRACKER}",
                next="give the directory that --save wrote to",
            )
