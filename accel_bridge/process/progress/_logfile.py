"""The file that takes what a training run says; no file that is there is ever touched."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from accel_bridge.process.outputs import OutputError, mapped

#: Beginning and end of a log's name.
PREFIX, SUFFIX = "train-", ".log"
#: Logs of one second in one folder: several machines may share it.
_MOST: Final = 10_000


def log_folder(words: Sequence[str]) -> Path:
    """The folder of Megatron's ``--save`` among ``words``, else the current one."""
    folder = ""
    for place, word in enumerate(words):
        if word == "--save":
            folder = "".join(words[place + 1 : place + 2])
        elif word.startswith("--save="):
            folder = word.partition("=")[2]
    return Path(folder or ".")


def new_log(folder: Path) -> tuple[Path, BinaryIO]:
    """A new file ``train-DATE-TIME.log`` in ``folder``, which is made if it is not there.

    :returns: its path, and the file, open for appending.
    :raises OutputError: no file can be made there.
    """
    stem = f"{PREFIX}{time.strftime('%Y%m%d-%H%M%S')}"
    with mapped(folder, "the log"):
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(1, _MOST):
            path = folder / (f"{stem}{SUFFIX}" if number == 1 else f"{stem}-{number}{SUFFIX}")
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                return path, os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
            except FileExistsError:
                continue
    raise OutputError(
        "There is no free name for a log.",
        evidence=f"{folder} holds {_MOST} logs of this second",
        next="remove old logs",
    )
