"""Flags of MindSpeed's and MindSpeed-LLM's scripts that Megatron's parser does not know.

Names and numbers of values in the table are from MindSpeed's master of July 2026 and its branch
26.1.0_core_r0.12.1, and from MindSpeed-LLM's master of that time (every ``add_argument``). A flag
without a row stays an unknown argument of Megatron's own parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Literal

TABLE: Final = Path(__file__).with_name("flags.json")


class Effect(str, Enum):
    """What a flag would do, and therefore how it is handled here."""

    #: Speed, memory or logging only: left out with a warning that names it.
    IGNORED = "ignored"
    #: Changes what is trained, or how the model is split: an error.
    REFUSED = "refused"
    #: A Megatron argument under another name.
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
    """

    name: str
    effect: Effect
    means: str
    values: Literal[0, 1, "+"] = 0
    harmless: tuple[str, ...] = ()
    next: str = "remove it"
    to: str | None = None


def _rows() -> Iterator[Flag]:
    """The table: in its ``flags``, ``--name=`` takes one value and ``--name=+`` several, and
    ``--name=a,b`` takes one of which a and b are harmless.
    """
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    for effect in Effect:
        for group in table[effect.value]:
            for written in group["flags"]:
                name, equals, rest = written.partition("=")
                yield Flag(
                    name=name,
                    effect=effect,
                    means=group["means"],
                    values="+" if rest == "+" else 1 if equals else 0,
                    harmless=tuple(rest.split(",")) if rest not in ("", "+") else (),
                    next=group.get("next", "remove it"),
                    to=group.get("to"),
                )


#: Every flag by its name.
FLAGS: Final = {flag.name: flag for flag in _rows()}
