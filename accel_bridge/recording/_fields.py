"""Checks of a parsed JSON document, field by field: files come from strangers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

#: How deep lists and objects may stand in each other.
DEPTH: Final = 32
#: Whole numbers are counts and fingerprints of 64 bits.
LARGEST: Final = 1 << 64
#: Characters of a name, a note or a version.
TEXT: Final = 10_000

#: What JSON calls each type, for people.
_NAMES: Final = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


class FieldError(ValueError):
    """A field is missing, or holds what it cannot hold; the text says which and what."""


def field(document: dict[str, Any], name: str, where: str = "") -> Any:
    """The value of a field that must be there."""
    if name not in document:
        raise FieldError(f"{where or 'the document'} has no field {name[:80]!r}")
    return document[name]


def obj(value: Any, where: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _wrong(value, where, "an object")
    return value


def items(value: Any, where: str, length: int | None = None) -> list[Any]:
    """A list, of ``length`` elements where that is given."""
    if not isinstance(value, list):
        raise _wrong(value, where, "a list")
    if length is not None and len(value) != length:
        raise FieldError(f"{where} has {len(value)} elements, not {length}")
    return value


def text(value: Any, where: str) -> str:
    """A text that can be written."""
    if not isinstance(value, str):
        raise _wrong(value, where, "a text")
    if len(value) > TEXT:
        raise FieldError(f"{where} has {len(value)} characters; {TEXT} is the most")
    return _encodable(value, where)


def texts(value: Any, where: str) -> dict[str, str]:
    """An object whose values are texts."""
    return {
        text(key, where): text(item, f"{where}.{key}") for key, item in obj(value, where).items()
    }


def whole(value: Any, where: str, least: int = 0) -> int:
    """A whole number from ``least`` to 2^64 - 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, where, "a whole number")
    if not least <= value < LARGEST:
        raise FieldError(f"{where} is out of range: it must be from {least} to 2^64 - 1")
    return value


def number(value: Any, where: str) -> float:
    """A number; infinities and NaN are numbers here."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(value, where, "a number")
    try:
        return float(value)
    except OverflowError:
        raise FieldError(f"{where} is too large for a number of 64 bits") from None


def size(value: Any, where: str) -> float:
    """A number that is not negative; infinity and NaN are allowed."""
    found = number(value, where)
    if found < 0:
        raise FieldError(f"{where} is negative")
    return found


def seconds(value: Any, where: str) -> float:
    """A time: finite and not negative."""
    found = size(value, where)
    if not math.isfinite(found):
        raise FieldError(f"{where} is {found}, which is no time")
    return found


def shallow(value: Any, where: str) -> Any:
    """Any JSON value of at most :data:`DEPTH` levels, whose texts can be written."""
    level: Iterable[Any] = [value]
    for _ in range(DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str):
                _encodable(one, where)
        level = below
        if not below:
            return value
    raise FieldError(f"{where} is nested deeper than {DEPTH} levels")


def _encodable(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FieldError(f"{where} holds half of a character") from None
    return value


def _wrong(value: Any, where: str, wanted: str) -> FieldError:
    return FieldError(f"{where} is {_NAMES[type(value)]}, not {wanted}")
