"""Runs that several tests examine, made once in a test session."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FinishedRuns:
    """The output of finished runs; pytest-xdist's processes share it and wait for each other.

    :param root: a folder that all processes of the session know.
    """

    root: Path

    def folder(self, key: object, make: Callable[[Path], object]) -> Path:
        """The folder that ``make`` filled, here or in another process.

        :param key: everything that the content depends on; equal keys have equal ``repr``.
        :param make: called with a new empty folder. When it raises, the next test tries again.
        """
        folder = self.root / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        finished = folder.with_suffix(".finished")
        with open(folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                finished.touch()
        return folder
