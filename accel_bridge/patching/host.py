"""What patches can query: the active backend, its kernels, and which libraries can be used."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from accel_bridge.device.backend import Backend, Features, features_of, kernels_of

if TYPE_CHECKING:
    from accel_bridge.kernels import Contract, Kernel, Kernels, Layout

P = ParamSpec("P")
R = TypeVar("R")
Made = TypeVar("Made")


@dataclass
class Host:
    """Handed to every patch and argument rule.

    :param backend: the backend that was selected.
    :param adapt: adapts the framework's parsed arguments to this backend.
    :param say: shows the user one line (rank 0 only).
    :param announce: shows which patches were applied; called once the framework is loaded.
    """

    backend: Backend
    adapt: Callable[[object], object]
    say: Callable[[str], None]
    announce: Callable[[], None]
    #: Whether imports of a library, by name, get this project's shim.
    is_shimmed: Callable[[str], bool] = lambda name: False
    #: The layout in which attention is called for [s, b, n, d]; flags may choose another.
    attention_layout: Layout = "SBHD"
    _said: set[str] = field(default_factory=set)
    _made: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def features(self) -> Features:
        """What the backend's device can do."""
        return features_of(self.backend)

    @cached_property
    def kernels(self) -> Kernels:
        """The backend's kernels, looked up by contract."""
        return kernels_of(self.backend)

    def kernel(self, contract: Contract[P, R]) -> Kernel[P, R]:
        """The backend's kernel for ``contract``.

        :raises KeyError: it has none. A patch lists the kernels it needs in ``kernels`` and is
            skipped without them.
        """
        return self.kernels[contract]

    def missing_kernel(self, contract: str) -> str | None:
        """Why the backend cannot serve the contract of that name, or None when it can."""
        if any(kernel.contract.name == contract for kernel in self.kernels):
            return None
        return f"the {self.backend.name} backend has no kernel {contract!r}"

    def library(self, name: str) -> bool:
        """Whether a library (``transformer_engine``, ``apex``) can be imported here.

        Libraries that cannot work on the selected device are hidden before this is asked.
        """
        return importlib.util.find_spec(name) is not None

    def say_once(self, line: str) -> None:
        """Show ``line`` unless this process has shown it already."""
        if line not in self._said:
            self._said.add(line)
            self.say(line)

    def once(self, key: str, make: Callable[[], Made]) -> Made:
        """The object that ``make`` returned when ``key`` was first requested."""
        if key not in self._made:
            self._made[key] = make()
        return cast(Made, self._made[key])
