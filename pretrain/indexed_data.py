"""A look at tokenized data before training; upstream meets a broken file minutes later."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_bridge.errors import BridgeError

#: First bytes of an index file (megatron/core/datasets/indexed_dataset.py).
MAGIC = b"MMIDIDX\x00\x00"
#: They, the version, a dtype's code, sequences, and bounds of documents.
_HEADER = struct.Struct("<9sQBQQ")

#: dtype code of an index file -> type of a token (megatron/core/datasets/indexed_dataset.py).
TOKEN_TYPES = {
    1: "u1",
    2: "i1",
    3: "<i2",
    4: "<i4",
    5: "<i8",
    6: "<f8",
    7: "<f4",
    8: "<u2",
}

#: Sequences looked at in one step; bounds memory.
_STEP = 1 << 20


class DataError(BridgeError):
    """Training data does not hold what training needs."""


@dataclass(frozen=True, slots=True)
class Index:
    """An ``.idx`` file, mapped into memory.

    :param kind: type of a token.
    :param lengths: tokens of each sequence.
    :param pointers: where each begins in the ``.bin``, in bytes.
    :param documents: bounds of the documents, as numbers of sequences.
    :param more: bytes behind all that; a multimodal index has one for each sequence.
    """

    kind: np.dtype[Any]
    lengths: npt.NDArray[np.int32]
    pointers: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    more: int

    @classmethod
    def read(cls, path: Path) -> Index:
        """The parts of the file.

        :raises DataError: it is no index, or too short.
        """
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
        magic, version, code, sequences, bounds = _HEADER.unpack(head.ljust(_HEADER.size, b"\0"))
        if magic != MAGIC or version != 1 or code not in TOKEN_TYPES or len(head) < _HEADER.size:
            raise DataError(
                f"{path} is not an index of tokenized data.",
                evidence=f"it begins with {head[:18]!r}, an index with {MAGIC!r}, version 1 and "
                "the code of a type",
                next="run `accel-bridge preprocess` again",
            )
        first, second = _HEADER.size + 4 * sequences, _HEADER.size + 12 * sequences
        end, size = second + 8 * bounds, os.stat(path).st_size
        if size < end:
            raise DataError(
                f"{path} is truncated.",
                evidence=f"it announces {sequences} sequences and has {size} bytes",
                next="run `accel-bridge preprocess` again",
            )
        data = np.memmap(path, np.uint8, "r")
        return cls(
            np.dtype(TOKEN_TYPES[code]),
            data[_HEADER.size : first].view(np.int32),
            data[first:second].view(np.int64),
            data[second:end].view(np.int64),
            size - end,
        )


def check_indexed_datasets(prefixes: Iterable[str], *, thoroughly: bool = True) -> None:
    """Each prefix must have a whole ``.idx`` and the ``.bin`` that it describes.

    :param thoroughly: look at every sequence, which reads the whole ``.idx``; one process of a
        machine does it for all.
    :raises DataError: for the first that has not.
    """
    for prefix in prefixes:
        if "://" not in prefix:  # object storage is Megatron's to check
            with readable(prefix):
                _check_indexed_dataset(prefix, thoroughly)


def check_ids(largest: int, smallest: int, vocabulary: int) -> None:
    """The ids of a batch must be rows of the embedding.

    Tensor-parallel ranks take an id that is in nobody's part for zeros, and train on.

    :param vocabulary: rows of the embedding, padding included.
    :raises DataError: an id is not.
    """
    if smallest < 0 or largest >= vocabulary:
        raise DataError(
            "The training data has token ids outside the model's vocabulary.",
            evidence=f"id {largest if largest >= vocabulary else smallest}; the model knows 0 to "
            f"{vocabulary - 1}",
            next="give the tokenizer that made the data; `accel-bridge inspect PREFIX "
            "--vocab-size N` finds such ids",
        )


@contextlib.contextmanager
def readable(prefix: str) -> Iterator[None]:
    """What the system says of a data set's files becomes :class:`DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"The training data {prefix} cannot be read.",
            evidence=str(error),
            next="see who may read both files, and whether the disk is sound",
        ) from error


def _check_indexed_dataset(prefix: str, thoroughly: bool) -> None:
    for suffix in (".idx", ".bin"):
        if not Path(prefix + suffix).is_file():
            raise DataError(
                f"The training data {prefix} is not there.",
                evidence=f"no file {prefix}{suffix}",
                next="give --data-path the prefix of the .idx and .bin files, without suffix; "
                "`accel-bridge preprocess --output-prefix ...` makes them",
            )
    index, size = Index.read(Path(prefix + ".idx")), Path(prefix + ".bin").stat().st_size
    lengths, pointers, sequences = index.lengths, index.pointers, len(index.lengths)
    if not sequences or not size:
        raise DataError(
            f"The training data {prefix} has no tokens.",
            evidence=f"{prefix}.idx describes {sequences} sequences, {prefix}.bin has {size} bytes",
            next="run `accel-bridge preprocess` on a file with documents, or leave this prefix out",
        )
    if thoroughly:
        _check_sequences(f"{prefix}.idx", index)
    begin = 0 if thoroughly else sequences - 1
    width = index.kind.itemsize
    expected = max(
        _end(lengths[start : start + _STEP], pointers[start : start + _STEP], width)
        for start in range(begin, sequences, _STEP)
    )
    if size < expected:
        raise DataError(
            f"The training data {prefix} is truncated.",
            evidence=f"{prefix}.idx describes {expected} bytes of tokens, {prefix}.bin has {size}",
            next="run `accel-bridge preprocess` again",
        )


def _end(lengths: npt.NDArray[Any], pointers: npt.NDArray[Any], width: int) -> int:
    """Where the last of these sequences ends, in bytes; exact, whatever the numbers are."""
    furthest = int(pointers.max())
    if furthest > 2**62:
        return furthest
    return int((pointers + lengths.astype(np.int64) * width).max())


def _check_sequences(path: str, index: Index) -> None:
    """Nothing negative, and documents that divide the sequences from the first to the last."""
    lengths, documents = index.lengths, index.documents
    problems = []
    for name, values in (("length", lengths), ("offset", index.pointers)):
        smallest = min(int(values[at : at + _STEP].min()) for at in range(0, len(values), _STEP))
        if smallest < 0:
            problems.append(f"a sequence has a negative {name}: {smallest}")
    ascending = True
    for at in range(0, len(documents), _STEP):
        bounds = documents[at : at + _STEP + 1]
        ascending = ascending and bool((bounds[1:] >= bounds[:-1]).all())
    if not len(documents) or documents[0] != 0 or documents[-1] != len(lengths) or not ascending:
        problems.append(f"its documents do not divide its {len(lengths)} sequences")
    if problems:
        raise DataError(
            f"{path} is damaged.",
            evidence=problems,
            next="`accel-bridge inspect PREFIX` shows more; run `accel-bridge preprocess` again",
        )
