"""Text that comes from files and other programs, made safe for a terminal."""

from __future__ import annotations

import unicodedata


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
