"""What patches can query: the active backend, its kernels, which libraries can be used; and the
arguments phase, in which the framework's parsed arguments are adapted to that.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from accel_bridge.device.backend import Backend, Features, features_of, kernels_of
from accel_bridge.errors import BridgeError

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
    adapt: Callable[[object], list[ArgumentChange]]
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


class ArgumentError(BridgeError):
    """An argument asks for something that this backend cannot do."""


#: What the framework's parser calls its arguments; filled once there is a parser.
_ACTIONS: list[argparse.Action] = []


def know_flags(parser: argparse.ArgumentParser) -> None:
    """Let :func:`flag_of` ask a parser, also for what is added to it later."""
    global _ACTIONS
    _ACTIONS = parser._actions


def flag_of(name: str) -> str:
    """How an argument is written on the command line: ``--no-rope-fusion`` for apply_rope_fusion.

    Before the framework has a parser, ``--`` and the name with dashes.
    """
    flag = f"--{name.replace('_', '-')}"
    known = [one for action in _ACTIONS if action.dest == name for one in action.option_strings]
    return flag if flag in known or not known else known[0]


def is_flag(name: str) -> bool:
    """Whether an attribute of the arguments can be given; with no parser, any may be."""
    return not _ACTIONS or any(action.dest == name for action in _ACTIONS)


def is_given(name: str, value: bool) -> bool:
    """Whether a switch with this value has its flag on the command line."""
    flag = flag_of(name)
    off = (one for one in _ACTIONS if isinstance(one, argparse._StoreFalseAction))
    return value != any(flag in one.option_strings for one in off)


def written(name: str, value: object) -> str:
    """An argument and its value as on the command line; ``without --flag`` where it is left out."""
    flag = flag_of(name)
    if value is None or isinstance(value, bool):
        return flag if value is not None and is_given(name, value) else f"without {flag}"
    words = value if isinstance(value, list | tuple) else [value]
    # Megatron reads the members of its enumerations by name.
    named = (one.name if isinstance(one, Enum) else str(one) for one in words)
    return " ".join([flag, *named])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentRule:
    """One argument that must change on this backend.

    :param name: attribute of the parsed arguments (and of configuration objects).
    :param when: whether the rule applies, given the arguments and the host. It may rely on
        ``name`` being present and must use ``getattr(args, other, default)`` for any other.
    :param value: the new value.
    :param why: one sentence; the user reads it.
    """

    name: str
    when: Callable[[Any, Host], bool]
    value: Any
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedArgument:
    """One argument for a feature that does not exist on this backend.

    :param flag: what the user wrote, e.g. ``--fp8-format``.
    :param next: what to write instead.
    """

    name: str
    flag: str
    when: Callable[[Any, Host], bool]
    why: str
    next: str


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """A change that was made: ``name`` went from ``old`` to ``new``."""

    name: str
    old: Any
    new: Any
    why: str

    def __str__(self) -> str:
        return f"argument {self.name}: {self.old} -> {self.new} ({self.why})"


def adapt_arguments(
    args: object, rules: Iterable[ArgumentRule | RefusedArgument], host: Host
) -> list[ArgumentChange]:
    """Apply ``rules`` to ``args`` in place and show every change, once per process.

    :raises ArgumentError: for a feature that this backend cannot provide.
    """
    changes = []
    for rule in rules:
        if not hasattr(args, rule.name) or not rule.when(args, host):
            continue
        old = getattr(args, rule.name)
        if isinstance(rule, RefusedArgument):
            raise ArgumentError(
                f"{rule.flag} cannot be used on the {host.backend.name} backend.",
                evidence=(f"{rule.name} = {old!r}", rule.why),
                next=rule.next,
            )
        if old != rule.value:
            change = ArgumentChange(rule.name, old, rule.value, rule.why)
            setattr(args, rule.name, rule.value)
            host.say_once(str(change))
            changes.append(change)
    return changes
