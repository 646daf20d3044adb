"""Lines and JSON as ``for line in open(path, encoding="utf-8"): json.loads(line)`` sees them.

That loop is the reference: Megatron's tool is written so. Text mode ends a line at ``\\n``,
``\\r\\n`` and a bare ``\\r`` and at nothing else, and ``json.loads`` takes NaN, the last of
duplicate keys, and lone surrogates. orjson is used where it accepts a line, since whatever it
accepts it reads as ``json`` does, with one exception that :func:`needs_reference_parser` finds.
"""

from __future__ import annotations

import json
import re
import sys

import orjson

_TWO_DIGITS = re.compile(rb"[0-9](?=[0-9])")


def split_lines(data: bytes) -> list[bytes]:
    """Lines of ``data`` without their ends, as text mode splits them.

    ``data`` must begin at the start of a line. UTF-8 never holds the bytes of ``\\r`` and
    ``\\n`` inside another character, so splitting before decoding is the same.
    """
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def block_end(data: bytes | bytearray) -> int:
    """Where ``data`` can be cut with only whole lines before the cut; 0 if nowhere.

    A final ``\\r`` is no line end yet: the next byte may be its ``\\n``.
    """
    newline = data.rfind(b"\n")
    if newline >= 0:
        return newline + 1
    return data.rfind(b"\r", 0, max(len(data) - 1, 0)) + 1


def parse(line: bytes) -> object:
    """One line, by orjson if it takes it and else by the reference, which has the last word.

    :raises ValueError: as :func:`parse_line`, and likewise RecursionError.
    """
    if not needs_reference_parser(line):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
    return parse_line(line)


def parse_line(line: bytes) -> object:
    """One line by the reference.

    :raises ValueError: not UTF-8, or not JSON (``UnicodeDecodeError`` and ``JSONDecodeError``).
    :raises RecursionError: nested too deeply.
    """
    return json.loads(line.decode("utf-8"))


def needs_reference_parser(data: bytes) -> bool:
    """Whether ``data`` may hold an integer that ``json`` refuses for its length.

    Python refuses integers of more than ``sys.get_int_max_str_digits()`` digits and orjson does
    not. A run that long covers two neighbours of any sample taken at half its length, and all
    that is between them.
    """
    limit = sys.get_int_max_str_digits()
    if limit == 0 or len(data) <= limit:
        return False
    step = max(limit // 2, 1)
    return any(
        data[step * hit.start() : step * (hit.start() + 1)].isdigit()
        for hit in _TWO_DIGITS.finditer(data[::step])
    )


def reason_of(error: BaseException, line: bytes) -> str:
    """Why a line could not be read, in one line of text."""
    if not line.strip():
        return "empty line"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start + 1} of the line"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.pos + 1} of the line"
    return f"{type(error).__name__}: {error}"
