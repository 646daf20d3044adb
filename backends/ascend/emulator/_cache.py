"""Where the emulator keeps what it built and installed."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_bridge.process import cache


def cache_folder() -> Path:
    """The emulator's part of the cache."""
    return cache.cache_folder("ascend")


@contextmanager
def locked() -> Iterator[None]:
    """Only one process at a time builds or installs; the others find the work done."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
