"""Two trainings never save to one directory: the second is refused, and the first is named."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext, before
from accel_bridge.process.outputs import OutputLock, mapped

#: The lock, in the directory of ``--save``.
LOCK: Final = ".accel-bridge-training.lock"


def hold(directory: Path) -> OutputLock:
    """Take the lock of ``directory``, which is made if it is not there, until this process ends.

    :raises OutputError: another training has it.
    """
    with mapped(directory, "--save"):
        directory.mkdir(parents=True, exist_ok=True)
    lock = OutputLock(
        directory / LOCK, "--save", taken=f"Another training saves to {directory}.", beats=True
    )
    lock.__enter__()
    atexit.register(lock.__exit__)
    return lock


def _take(context: PatchContext) -> None:
    from torch import distributed

    args = context.module.get_args()
    # An address of an object store takes no lock; ranks that are only imagined save nothing.
    if not args.save or "://" in str(args.save) or getattr(args, "skip_train", False):
        return
    if distributed.get_rank() == 0 and distributed.get_backend() != "fake":
        context.host.once("save-lock", lambda: hold(Path(args.save)))


PATCHES = (
    megatron_patch(
        id="save-lock",
        target="megatron.training.training:setup_model_and_optimizer",
        kind=Kind.WRAP,
        make=before(_take),
        why="two trainings with one --save overwrite each other's checkpoints, and both end well",
        removed_when="upstream locks the directory it saves to",
        loses="two trainings may save to one directory",
        after=("lora-check",),
    ),
)
