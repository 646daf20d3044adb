"""Where the emulator keeps what it built and installed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/accel_bridge/ascend``, or the same in ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "accel_bridge" / "ascend"


@contextmanager
def locked() -> Iterator[None]:
    """Only one process at a time builds or installs; the others find the work done."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
