"""Errors that a user sees: what happened, the evidence, the next command."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any, Final

#: What every command and every rank prints before an error.
ERROR_PREFIX: Final = "accel-bridge: error:"


class BridgeError(Exception):
    """An error in three parts.

    :param what: one sentence: what happened.
    :param evidence: what was looked at or found; one line each.
    :param next: the command or edit that fixes it.
    :param exit_code: exit status of a command that ends with this error; by default its type's.

    ``str(error)`` shows all three, and command lines print exactly that.
    """

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        evidence: str | Iterable[str],
        next: str,
        exit_code: int | None = None,
    ) -> None:
        if exit_code is not None:
            self.exit_code = exit_code
        self.what = what
        self.evidence = (evidence,) if isinstance(evidence, str) else tuple(evidence)
        self.next = next
        super().__init__(what)

    def __reduce__(self) -> tuple[Any, ...]:
        """Ray pickles errors, and NVIDIA's resiliency extension copies them.

        Made again without its constructor, which subclasses give other parameters.
        """
        return _again, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  evidence: {line}" for line in self.evidence]
        lines.append(f"  next:     {self.next}")
        # Names and values come from files and other programs.
        return printable("\n".join(lines), keep="\n\t")


def _again(kind: type[BridgeError], args: tuple[Any, ...]) -> BridgeError:
    return kind.__new__(kind, *args)


class SelectionError(BridgeError):
    """No backend can be used, or the one that was asked for cannot."""


class PluginError(BridgeError):
    """A plugin failed and is needed."""


class PatchError(BridgeError):
    """A patch cannot be applied: target gone, signature changed, conflict."""


class EnvironmentVariableError(BridgeError):
    """An ``ACCEL_BRIDGE_*`` variable holds a value that means nothing."""


def printable(text: str, *, keep: str = "") -> str:
    """``text`` with control, formatting and half characters as visible escapes.

    Such characters can move the cursor, change the colours or the order of what is read, and half
    of a surrogate pair cannot be written at all.

    :param keep: characters to leave as they are, such as line ends.
    """
    if text.isprintable():
        return text
    return "".join(one if one in keep or _is_plain(one) else _escaped(one) for one in text)


def _is_plain(one: str) -> bool:
    return one.isprintable() or unicodedata.category(one) == "Zs"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
