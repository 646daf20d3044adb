"""One block of input in, token ids out. Runs in worker processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .blocks import Block
from .engines import Engine, IdType, Tokens
from .errors import TokenizerError, panics_as_errors
from .records import BadRecord, Column, RecordReader, Splitter

#: What engines raise for a text that they do not take (pybind11 says RuntimeError).
_REFUSALS = (ValueError, TypeError, OverflowError, RuntimeError)
_SURROGATE = re.compile("[\ud800-\udfff]")


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
    #: Records that a data handler leaves out, and rows that are too long for it.
    left_out: int = 0


class Encoder(Protocol):
    """Something that encodes blocks."""

    def encode(self, block: Block) -> EncodedBlock:
        """Encode one block; bad records are listed in the result."""


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
        self._records = RecordReader(keys, splitter)
        self._dtype = dtype
        self._eod = None if eod is None else np.array([eod], dtype=dtype)

    def encode(self, block: Block) -> EncodedBlock:
        """Encode one block. Bad records are left out and listed in the result, in order."""
        bad: list[BadRecord] = []
        columns, places, count, size = self._records.read(block, bad)
        counts = dict(self._engine.counts)
        keys = self._tokenize(columns)
        if keys is None:
            columns, places = self._without_bad_text(columns, places, bad)
            counts = dict(self._engine.counts)
            keys = self._tokenize(columns)
            assert keys is not None
        bad.sort()
        return EncodedBlock(
            records=count,
            documents=len(places),
            input_bytes=size,
            keys=keys,
            bad=bad,
            engine_counts={
                name: count - counts.get(name, 0) for name, count in self._engine.counts.items()
            },
        )

    def _tokenize(self, columns: dict[str, Column]) -> dict[str, KeyTokens] | None:
        """Tokens of every key; ``None`` if the engine refuses some text."""
        try:
            return {
                key: self._key_tokens(self._encoded(column.sentences), column.counts)
                for key, column in columns.items()
            }
        except _REFUSALS:
            return None

    def _encoded(self, sentences: list[str]) -> list[Tokens]:
        """What the engine makes of them.

        :raises RuntimeError: it refuses them, or panics: a pattern may give up on a text.
        """
        with panics_as_errors():
            return self._engine.encode(sentences)

    def _without_bad_text(
        self, columns: dict[str, Column], indices: Sequence[int], bad: list[BadRecord]
    ) -> tuple[dict[str, Column], Sequence[int]]:
        """The columns without the documents that the engine refuses."""
        starts = dict.fromkeys(columns, 0)
        kept = []
        result = {key: Column([], []) for key in columns}
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
            self._encoded(sentences)
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
                    next="fix the vocabulary: ids from 0 on, without gaps",
                )
        tokens = joined.astype(self._dtype, copy=False).tobytes()
        return KeyTokens(tokens, lengths[lengths > 0].tobytes(), sequences.tobytes())


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
