"""What a row of the table of MindSpeed's flags says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Effect(str, Enum):
    """What a flag would do, and therefore how it is handled here."""

    #: Speed, memory or logging only: left out with a warning that names it.
    IGNORED = "ignored"
    #: Changes what is trained, or how the model is split: an error.
    REFUSED = "refused"
    #: A Megatron argument under another name, or several (:mod:`.translations`).
    MAPPED = "mapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag.

    :param name: as written, e.g. ``--use-mc2``.
    :param means: what it does, in words.
    :param values: how many values follow it: none, one, or at least one.
    :param harmless: values that change nothing, e.g. MindSpeed's own default.
    :param next: what to write instead of a refused flag.
    :param to: attribute of Megatron's arguments that a mapped flag sets: to its value, or True.
        None for a mapped flag: :data:`.translations.TRANSLATIONS` has its function.
    :param kind: what the value is converted to.
    :param becomes: what a flag with a function of its own sets, for the documentation.
    """

    name: str
    effect: Effect
    means: str
    values: Literal[0, 1, "+"] = 0
    harmless: tuple[str, ...] = ()
    next: str = "remove it"
    to: str | None = None
    kind: type[str] | type[int] | type[float] = str
    becomes: str = ""


def ignored(means: str, names: str) -> tuple[Flag, ...]:
    """:param names: ``--name``, or ``--name=`` when a value follows, ``--name=+`` for several."""
    return tuple(_row(name, Effect.IGNORED, means) for name in names.split())


def refused(means: str, names: str, next: str = "remove it") -> tuple[Flag, ...]:
    """:param names: as above; ``--name=a,b`` takes one value; a and b are harmless."""
    return tuple(_row(name, Effect.REFUSED, means, next) for name in names.split())


def _row(name: str, effect: Effect, means: str, next: str = "remove it") -> Flag:
    flag, equals, rest = name.partition("=")
    return Flag(
        name=flag,
        effect=effect,
        means=means,
        values="+" if rest == "+" else 1 if equals else 0,
        harmless=tuple(rest.split(",")) if rest not in ("", "+") else (),
        next=next,
    )
