"""Megatron's index format, written so that an interruption costs nothing.

Tokens go to ``.bin.partial``; lengths go to two spool files, from which the index is made at
the end piece by piece, so memory does not grow with the number of documents. Only complete
files get their final names.

Index: ``MMIDIDX\\0\\0``, u64 1, u8 type code, u64 sequences, u64 documents + 1, then int32
length and int64 byte offset of each sequence, and int64 first sequence of each document with
the number of sequences last. Source: megatron/core/datasets/indexed_dataset.py.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from ._encoder import KeyTokens
from ._engines import IdType
from ._errors import OutputError

INDEX_MAGIC = b"MMIDIDX\x00\x00"
#: Megatron's codes of integer types.
TYPE_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}

_CHUNK_ITEMS = 1 << 20


@dataclass(frozen=True)
class SpoolSizes:
    """Bytes of the three partial files; enough to cut them back to a known state."""

    tokens: int = 0
    lengths: int = 0
    documents: int = 0


class KeyWriter:
    """Output of one key.

    :param prefix: path without suffix, key and level included.
    :param dtype: integer type of the ids.
    :param resume: sizes to continue from; ``None`` starts anew.
    """

    def __init__(self, prefix: str, dtype: IdType, resume: SpoolSizes | None = None) -> None:
        self._dtype = dtype
        self.prefix = prefix
        self.bin_path = Path(prefix + ".bin")
        self.idx_path = Path(prefix + ".idx")
        self._partials = [Path(prefix + suffix + ".partial") for suffix in _SPOOL_SUFFIXES]
        self._index_partial = Path(prefix + ".idx.partial")
        sizes = resume or SpoolSizes()
        self._sizes = [sizes.tokens, sizes.lengths, sizes.documents]
        self._files = [
            _open_at(path, size) for path, size in zip(self._partials, self._sizes, strict=True)
        ]

    @property
    def sizes(self) -> SpoolSizes:
        """What has been written so far."""
        return SpoolSizes(*self._sizes)

    @property
    def tokens(self) -> int:
        """Ids written so far."""
        return self._sizes[0] // self._dtype.itemsize

    def append(self, block: KeyTokens) -> None:
        """Write the tokens of one block.

        :raises OSError: the disk is full, or fails.
        """
        for position, data in enumerate(block):
            _write_all(self._files[position], data)
            self._sizes[position] += len(data)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        for file in self._files:
            os.fdatasync(file.fileno())

    def prepare(self) -> None:
        """Write the index beside the final files and sync everything."""
        with open(self._index_partial, "wb") as index:
            self._write_index(index)
            index.flush()
            os.fsync(index.fileno())
        self.sync()

    def publish(self) -> None:
        """Give the complete files their names, ``.idx`` last.

        An older index goes first: at no moment does an index stand beside another's data.
        """
        self.idx_path.unlink(missing_ok=True)
        os.replace(self._partials[0], self.bin_path)
        os.replace(self._index_partial, self.idx_path)
        self.close()
        for path in self._partials[1:]:
            path.unlink()
        _sync_folder(self.bin_path.parent)

    def close(self) -> None:
        """Close the partial files, keeping them."""
        for file in self._files:
            file.close()

    def discard(self) -> None:
        """Close and remove the partial files."""
        self.close()
        for path in (*self._partials, self._index_partial):
            path.unlink(missing_ok=True)

    def _write_index(self, index: IO[bytes]) -> None:
        sequences = self._sizes[1] // 4
        documents = self._sizes[2] // 4
        index.write(INDEX_MAGIC)
        code = TYPE_CODES[self._dtype.name]
        index.write(struct.pack("<QBQQ", 1, code, sequences, documents + 1))
        for lengths in self._spooled(1):
            index.write(lengths.tobytes())
        pointer = 0
        for lengths in self._spooled(1):
            ends = np.cumsum(lengths, dtype=np.int64) * self._dtype.itemsize + pointer
            starts = np.concatenate(([pointer], ends[:-1])).astype(np.int64)
            index.write(starts.tobytes())
            pointer = int(ends[-1])
        first = 0
        index.write(struct.pack("<q", first))
        for counts in self._spooled(2):
            firsts = np.cumsum(counts, dtype=np.int64) + first
            index.write(firsts.tobytes())
            first = int(firsts[-1])

    def _spooled(self, position: int) -> Iterator[npt.NDArray[np.int32]]:
        with open(self._partials[position], "rb") as file:
            while data := file.read(4 * _CHUNK_ITEMS):
                yield np.frombuffer(data, np.int32)


_SPOOL_SUFFIXES = (".bin", ".lengths", ".documents")


def _open_at(path: Path, size: int) -> IO[bytes]:
    """Open a partial file, alone, cut to ``size`` bytes and positioned there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise OutputError(
            "another run is writing this output",
            evidence=f"{path} is locked",
            next="wait for it, or choose another --output-prefix",
        ) from error
    file.truncate(size)
    file.seek(size)
    return file


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
