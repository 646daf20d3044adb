"""Processes that a test starts by "spawn", without importing a large package in each of them.

They are forked from a server that has imported it and done nothing else with it. Like those of
"spawn", they share nothing with the test, and they have its environment.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import context
from typing import Any


class _Process(context.ForkServerProcess):
    """A process with the environment that the test has when it starts the process."""

    _environ: dict[str, str]

    def start(self) -> None:
        self._environ = dict(os.environ)
        super().start()

    def _bootstrap(self, *args: Any, **kwargs: Any) -> int:
        os.environ.clear()
        os.environ.update(self._environ)
        return int(super()._bootstrap(*args, **kwargs))  # type: ignore[misc]


class _Context(context.ForkServerContext):
    Process = _Process


def spawn_from(modules: Sequence[str]) -> None:
    """Let "spawn" fork from a server that has imported ``modules``."""
    multiprocessing.set_forkserver_preload(list(modules))
    context._concrete_contexts["spawn"] = _Context()  # type: ignore[attr-defined]
