"""The texts of one block of input, record by record, and the records that have none.

Lines and JSON are read as Megatron's tool reads them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import orjson

from .blocks import Block, LinesBlock, NoValue, read_block

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


#: Makes sentences of a text.
Splitter = Callable[[str], list[str]]


class BadRecord(NamedTuple):
    """A record that cannot be used.

    :param place: where it is in its block, from 0.
    :param key: which of the keys is at fault, if one is.
    """

    place: int
    key: str | None
    reason: str


class Column(NamedTuple):
    """One key's text: all sentences in a row, and how many belong to each document."""

    sentences: list[str]
    counts: list[int] | None  # None: one each


class Records(NamedTuple):
    """What a block holds.

    :param columns: the texts of each key.
    :param places: where each document is among the block's records, from 0.
    :param number: lines or rows, bad ones included.
    :param size: bytes of the block.
    """

    columns: dict[str, Column]
    places: Sequence[int]
    number: int
    size: int


class RecordReader:
    """Finds the texts of blocks.

    :param keys: which values of a record are text.
    :param splitter: makes sentences of a text; ``None`` keeps it whole.
    """

    def __init__(self, keys: Sequence[str], splitter: Splitter | None = None) -> None:
        self._keys = tuple(keys)
        self._splitter = splitter

    def read(self, block: Block, bad: list[BadRecord]) -> Records:
        """The texts of one block; records without are left out and added to ``bad``.

        :raises InputError: the block's file is shorter than it was.
        """
        content, size = read_block(block)
        if isinstance(content, LinesBlock):
            values, places, count = self._values_of_lines(content.data, bad)
        else:
            values, count = content.columns, len(next(iter(content.columns.values())))
            places = range(count)
        columns, places = self._columns(values, places, bad)
        return Records(columns, places, count, size)

    def _values_of_lines(
        self, data: bytes, bad: list[BadRecord]
    ) -> tuple[dict[str, list[object]], Sequence[int], int]:
        lines = split_lines(data)
        if not needs_reference_parser(data):
            try:
                return self._values_fast(lines), range(len(lines)), len(lines)
            except (orjson.JSONDecodeError, KeyError, TypeError):
                # Some line is bad, or is JSON only to Python: look at them one by one.
                pass
        values: dict[str, list[object]] = {key: [] for key in self._keys}
        indices = []
        for index, line in enumerate(lines):
            found = self._values_of_line(index, line)
            if isinstance(found, BadRecord):
                bad.append(found)
                continue
            indices.append(index)
            for key, value in zip(self._keys, found, strict=True):
                values[key].append(value)
        return values, indices, len(lines)

    def _values_fast(self, lines: list[bytes]) -> dict[str, list[object]]:
        loads = orjson.loads
        if len(self._keys) == 1:
            key = self._keys[0]
            return {key: [loads(line)[key] for line in lines]}
        records = [loads(line) for line in lines]
        return {key: [record[key] for record in records] for key in self._keys}

    def _values_of_line(self, index: int, line: bytes) -> list[object] | BadRecord:
        try:
            record = parse(line)
        except (ValueError, RecursionError) as error:
            return BadRecord(index, None, reason_of(error, line))
        if not isinstance(record, dict):
            return BadRecord(index, None, f"not an object but {_describe(record)}")
        values = []
        for key in self._keys:
            if key not in record:
                present = ", ".join(list(record)[:10]) or "none"
                return BadRecord(index, key, f"no key {key!r}; the record's keys: {present}")
            values.append(record[key])
        return values

    def _columns(
        self, values: dict[str, list[object]], indices: Sequence[int], bad: list[BadRecord]
    ) -> tuple[dict[str, Column], Sequence[int]]:
        """Sentences of every key, without the records whose value is no text."""
        if self._splitter is None and all(_all_strings(column) for column in values.values()):
            return {key: Column(column, None) for key, column in values.items()}, indices  # type: ignore[arg-type]
        kept: list[int] = []
        columns = {key: Column([], []) for key in self._keys}
        for position, index in enumerate(indices):
            row: list[list[str]] = []
            for key in self._keys:
                found = self._sentences(values[key][position])
                if isinstance(found, str):
                    bad.append(BadRecord(index, key, found))
                    break
                row.append(found)
            else:
                kept.append(index)
                for key, sentences in zip(self._keys, row, strict=True):
                    column = columns[key]
                    assert column.counts is not None
                    column.sentences.extend(sentences)
                    column.counts.append(len(sentences))
        return columns, kept

    def _sentences(self, value: object) -> list[str] | str:
        """Sentences of a value, or why it has none."""
        if isinstance(value, str):
            return [value] if self._splitter is None else self._splitter(value)
        if isinstance(value, NoValue):
            return value.reason
        if not isinstance(value, list):
            return f"not text but {_describe(value)}"
        if self._splitter is not None:
            return "a list of texts cannot be split into sentences again"
        for item in value:
            if not isinstance(item, str):
                return f"a list with {_describe(item)} in it, not only text"
        return value


def _all_strings(values: list[object]) -> bool:
    return set(map(type, values)) <= {str}


def _describe(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number"}
    if value is None:
        return "null"
    return names.get(type(value), f"a value of type {type(value).__name__}")
