"""The arguments phase: adapting the framework's parsed arguments to this backend.

Rules are data. Each names one argument, gives its new value, and says why; each change is shown
as one line. A rule may choose another form of the same function, never another function: a
feature that does not exist here is refused with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from accel_bridge.errors import BridgeError
from accel_bridge.patching.host import Host


class ArgumentError(BridgeError):
    """An argument asks for something that this backend cannot do."""


def flag_of(name: str) -> str:
    """How an argument is written on the command line."""
    return f"--{name.replace('_', '-')}"


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
