"""A look at tokenized data before training; upstream meets a broken file minutes later."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_bridge.errors import BridgeError

#: First bytes of an index file (megatron/core/datasets/indexed_dataset.py).
_MAGIC = b"MMIDIDX\x00\x00"
_HEADER_BYTES = 34

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


def check_indexed_datasets(prefixes: Iterable[str], *, thoroughly: bool = True) -> None:
    """Each prefix must have a whole ``.idx`` and the ``.bin`` that it describes.

    :param thoroughly: look at every sequence, which reads the whole ``.idx``; one process of a
        machine does it for all.
    :raises DataError: for the first that has not.
    """
    for prefix in prefixes:
        if "://" not in prefix:  # object storage is Megatron's to check
            with _readable(prefix):
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
def _readable(prefix: str) -> Iterator[None]:
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
    index, size = Path(prefix + ".idx"), Path(prefix + ".bin").stat().st_size
    width, sequences, boundaries = header(index)
    if not sequences:
        return
    data = np.memmap(index, np.uint8, "r", offset=0)
    first, second = _HEADER_BYTES + 4 * sequences, _HEADER_BYTES + 12 * sequences
    lengths = data[_HEADER_BYTES:first].view(np.int32)
    pointers = data[first:second].view(np.int64)
    documents = data[second : second + 8 * boundaries].view(np.int64)
    if thoroughly:
        _check_sequences(index, lengths, pointers, documents)
    begin = 0 if thoroughly else sequences - 1
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


def header(index: Path) -> tuple[int, int, int]:
    """Bytes of a token, sequences, and bounds of documents, of an index that is long enough.

    :raises DataError: it is no index, or too short.
    """
    with index.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES or not head.startswith(_MAGIC) or head[17] not in TOKEN_TYPES:
        raise DataError(
            f"{index} is not an index of tokenized data.",
            evidence=f"it starts with {head[:9]!r}, an index with {_MAGIC!r}",
            next="run `accel-bridge preprocess` again",
        )
    sequences, boundaries = struct.unpack("<QQ", head[18:34])
    # Sequence lengths (int32), byte pointers (int64), document index (int64).
    size = os.stat(index).st_size
    if size < _HEADER_BYTES + sequences * 12 + boundaries * 8:
        raise DataError(
            f"{index} is truncated.",
            evidence=f"it announces {sequences} sequences and has {size} bytes",
            next="run `accel-bridge preprocess` again",
        )
    return np.dtype(TOKEN_TYPES[head[17]]).itemsize, sequences, boundaries


def _check_sequences(
    index: Path,
    lengths: npt.NDArray[np.int32],
    pointers: npt.NDArray[np.int64],
    documents: npt.NDArray[np.int64],
) -> None:
    """Nothing negative, and documents that divide the sequences from the first to the last."""
    problems = []
    for name, values in (("length", lengths), ("offset", pointers)):
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
            f"{index} is damaged.",
            evidence=problems,
            next="`accel-bridge inspect PREFIX` shows more; run `accel-bridge preprocess` again",
        )
