"""One block of input in, token ids out. Runs in worker processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from ._blocks import Block, LinesBlock, NoValue, read_block
from ._engines import Engine, IdType, Tokens
from ._errors import TokenizerError
from ._lines import needs_reference_parser, parse_line, reason_of, split_lines

#: Makes sentences of a text.
Splitter = Callable[[str], list[str]]

#: What engines raise for a text that they do not take (pybind11 says RuntimeError).
_REFUSALS = (ValueError, TypeError, OverflowError, RuntimeError)
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadRecord(NamedTuple):
    """A record that cannot be used.

    :param place: where it is in its block, from 0.
    :param key: which of the keys is at fault, if one is.
    """

    place: int
    key: str | None
    reason: str


class KeyTokens(NamedTuple):
    """Tokens of one key in one block, as they go to disk.

    :param tokens: ids, shape (tokens,), in the output's integer type.
    :param sequence_lengths: int32, shape (sequences,).
    :param document_sequences: int32, shape (documents,): sequences of each document.
    """

    tokens: bytes
    sequence_lengths: bytes
    document_sequences: bytes


@dataclass
class EncodedBlock:
    """What a worker returns for a block.

    :param records: lines or rows in it, bad ones included.
    :param documents: those that were encoded.
    """

    records: int
    documents: int
    input_bytes: int
    keys: dict[str, KeyTokens]
    bad: list[BadRecord]
    engine_counts: dict[str, int]
    #: Bytes of each key's tokens where a worker left them in shared memory.
    in_window: list[int] | None = None


class _Column(NamedTuple):
    """One key's text: all sentences in a row, and how many belong to each document."""

    sentences: list[str]
    counts: list[int] | None  # None: one each


class BlockEncoder:
    """Encodes blocks.

    :param keys: which values of a record are text.
    :param dtype: the output's integer type.
    :param eod: id appended to every document that is not empty, or ``None``.
    :param splitter: makes sentences of a text; ``None`` keeps it whole.
    """

    def __init__(
        self,
        engine: Engine,
        keys: Sequence[str],
        dtype: IdType,
        eod: int | None,
        splitter: Splitter | None = None,
    ) -> None:
        self._engine = engine
        self._keys = tuple(keys)
        self._dtype = dtype
        self._eod = None if eod is None else np.array([eod], dtype=dtype)
        self._splitter = splitter

    def encode(self, block: Block) -> EncodedBlock:
        """Encode one block. Bad records are left out and listed in the result, in order."""
        content, size = read_block(block)
        bad: list[BadRecord] = []
        if isinstance(content, LinesBlock):
            values, indices, records = self._values_of_lines(content.data, bad)
        else:
            values, records = content.columns, len(next(iter(content.columns.values())))
            indices = range(records)
        columns, indices = self._columns(values, indices, bad)
        counts = dict(self._engine.counts)
        keys = self._tokenize(columns)
        if keys is None:
            columns, indices = self._without_bad_text(columns, indices, bad)
            counts = dict(self._engine.counts)
            keys = self._tokenize(columns)
            assert keys is not None
        bad.sort()
        return EncodedBlock(
            records=records,
            documents=len(indices),
            input_bytes=size,
            keys=keys,
            bad=bad,
            engine_counts={
                name: count - counts.get(name, 0) for name, count in self._engine.counts.items()
            },
        )

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
            record = _parse(line)
        except (ValueError, RecursionError) as error:
            reason = "empty line" if not line.strip() else reason_of(error)
            return BadRecord(index, None, reason)
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
    ) -> tuple[dict[str, _Column], Sequence[int]]:
        """Sentences of every key, without the records whose value is no text."""
        if self._splitter is None and all(_all_strings(column) for column in values.values()):
            return {key: _Column(column, None) for key, column in values.items()}, indices  # type: ignore[arg-type]
        kept: list[int] = []
        columns = {key: _Column([], []) for key in self._keys}
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

    def _tokenize(self, columns: dict[str, _Column]) -> dict[str, KeyTokens] | None:
        """Tokens of every key; ``None`` if the engine refuses some text."""
        try:
            return {
                key: self._key_tokens(self._engine.encode(column.sentences), column.counts)
                for key, column in columns.items()
            }
        except _REFUSALS:
            return None

    def _without_bad_text(
        self, columns: dict[str, _Column], indices: Sequence[int], bad: list[BadRecord]
    ) -> tuple[dict[str, _Column], Sequence[int]]:
        """The columns without the documents that the engine refuses."""
        starts = dict.fromkeys(columns, 0)
        kept = []
        result = {key: _Column([], []) for key in columns}
        for position, index in enumerate(indices):
            parts = {}
            refusal = None
            for key, column in columns.items():
                count = 1 if column.counts is None else column.counts[position]
                parts[key] = column.sentences[starts[key] : starts[key] + count]
                starts[key] += count
                refusal = refusal or self._refusal(index, key, parts[key])
            if refusal:
                bad.append(refusal)
                continue
            kept.append(index)
            for key, sentences in parts.items():
                target = result[key]
                assert target.counts is not None
                target.sentences.extend(sentences)
                target.counts.append(len(sentences))
        return result, kept

    def _refusal(self, index: int, key: str, sentences: list[str]) -> BadRecord | None:
        try:
            self._engine.encode(sentences)
        except _REFUSALS as error:
            surrogate = _SURROGATE.search("".join(sentences))
            if surrogate:
                code = f"\\u{ord(surrogate.group()):04x}"
                return BadRecord(index, key, f"a lone surrogate {code} is not text")
            return BadRecord(index, key, f"the tokenizer refuses it: {error}")
        return None

    def _key_tokens(self, arrays: list[Tokens], counts: list[int] | None) -> KeyTokens:
        """Join arrays of ids: a sentence without ids is no sequence, a document without ids
        gets no end token, and the last sequence of any other carries it.
        """
        lengths = np.fromiter(map(len, arrays), np.int32, len(arrays))
        if counts is None:
            sequences = (lengths > 0).astype(np.int32)
            last = np.flatnonzero(lengths)
        else:
            sequences, last = _group(lengths, counts)
        pieces: list[Tokens] = arrays
        if self._eod is not None:
            pieces = _insert_after(arrays, last, self._eod)
            lengths[last] += 1
        joined: Tokens = np.concatenate(pieces) if pieces else np.empty(0, self._dtype)
        if joined.size and not np.can_cast(joined.dtype, self._dtype):
            largest = int(joined.max())
            if largest > np.iinfo(self._dtype).max:
                raise TokenizerError(
                    "the tokenizer makes ids beyond its own vocabulary",
                    evidence=f"id {largest} does not fit into {self._dtype.name}, the type for "
                    "its number of tokens",
                    next="mend the vocabulary: ids from 0 on, without gaps",
                )
        tokens = joined.astype(self._dtype, copy=False).tobytes()
        return KeyTokens(tokens, lengths[lengths > 0].tobytes(), sequences.tobytes())


def _parse(line: bytes) -> object:
    """One line, by orjson if it takes it and else by the reference, which has the last word."""
    if not needs_reference_parser(line):
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
    return parse_line(line)


def _group(
    lengths: npt.NDArray[np.int32], counts: list[int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Sequences of each document, and the index of each document's last one that is not empty."""
    owners = np.repeat(np.arange(len(counts)), counts)
    filled = np.flatnonzero(lengths)
    sequences = np.bincount(owners[filled], minlength=len(counts)).astype(np.int32)
    ends = np.cumsum(sequences)[sequences > 0] - 1
    return sequences, filled[ends]


def _insert_after(
    arrays: list[Tokens], positions: npt.NDArray[np.int64], item: Tokens
) -> list[Tokens]:
    if len(positions) == len(arrays):
        return [piece for array in arrays for piece in (array, item)]
    result: list[Tokens] = []
    start = 0
    for end in (positions + 1).tolist():
        result += arrays[start:end]
        result.append(item)
        start = end
    return result + arrays[start:]


def _all_strings(values: list[object]) -> bool:
    return set(map(type, values)) <= {str}


def _describe(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number"}
    if value is None:
        return "null"
    return names.get(type(value), f"a value of type {type(value).__name__}")
