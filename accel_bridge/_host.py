"""What patches may ask: the active backend, its kernels, and whether a library can be used."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from accel_bridge._backend import Backend, Features

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernel


@dataclass
class Host:
    """Handed to every patch and argument rule.

    :param backend: the backend that was selected.
    :param redirected: ``torch.cuda`` is redirected to a device that is not CUDA.
    :param say: shows the user one line (rank 0 only).
    """

    backend: Backend
    redirected: bool
    say: Callable[[str], None]
    _said: set[str] = field(default_factory=set)

    @property
    def features(self) -> Features:
        """What the backend's device can do."""
        return self.backend.features

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """The backend's kernels by contract name."""
        return self.backend.kernels()

    def missing_kernel(self, contract: str) -> str | None:
        """Why the backend cannot serve ``contract``, or None when it can."""
        if contract in self.kernels:
            return None
        return f"the {self.backend.name} backend has no kernel {contract!r}"

    def library(self, name: str) -> bool:
        """Whether a CUDA library (``transformer_engine``, ``apex``) can be used here.

        On a redirected device it cannot, installed or not: its kernels are CUDA code.
        """
        return not self.redirected and importlib.util.find_spec(name) is not None

    def say_once(self, line: str) -> None:
        """Show ``line`` unless this process has shown it already."""
        if line not in self._said:
            self._said.add(line)
            self.say(line)
