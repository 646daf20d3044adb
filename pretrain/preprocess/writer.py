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
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from accel_bridge.pretrain.indexed_data import MAGIC, TOKEN_TYPES
from accel_bridge.process.outputs import OutputError

from .encoder import KeyTokens
from .engines import IdType
from .errors import ResumeError

#: Megatron's codes of types.
_CODES = {np.dtype(kind): code for code, kind in TOKEN_TYPES.items()}

_CHUNK_ITEMS = 1 << 20


@dataclass(frozen=True)
class SpoolSizes:
    """Bytes of the three partial files; enough to cut them back to a known state."""

    tokens: int = 0
    lengths: int = 0
    documents: int = 0


class _Spool:
    """Three growing files: tokens, sequence lengths, sequences per document.

    :param prefix: their path without ending.
    :param sizes: where to continue; what lies beyond is cut off.
    """

    def __init__(self, prefix: str, sizes: SpoolSizes) -> None:
        self.paths = [Path(prefix + suffix + ".partial") for suffix in SPOOL_SUFFIXES]
        self._sizes = list(astuple(sizes))
        self._files = [
            open_at(path, size) for path, size in zip(self.paths, self._sizes, strict=True)
        ]

    @property
    def sizes(self) -> SpoolSizes:
        """What has been written so far."""
        return SpoolSizes(*self._sizes)

    def append(self, block: KeyTokens) -> None:
        """Write a block to the end."""
        for position, data in enumerate(block):
            self._append(position, data)

    def append_all(self, other: _Spool) -> None:
        """Write all of another spool to the end."""
        for position in range(len(SPOOL_SUFFIXES)):
            with open(other.paths[position], "rb") as file:
                while data := file.read(4 * _CHUNK_ITEMS):
                    self._append(position, data)

    def integers(self, position: int) -> Iterator[npt.NDArray[np.int32]]:
        """The lengths (1) or documents (2), some at a time."""
        with open(self.paths[position], "rb") as file:
            while data := file.read(4 * _CHUNK_ITEMS):
                yield np.frombuffer(data, np.int32)

    def cut(self, sizes: SpoolSizes) -> None:
        """Forget what was written beyond ``sizes``; it makes room on a full disk."""
        self._sizes = list(astuple(sizes))
        for file, size in zip(self._files, self._sizes, strict=True):
            file.truncate(size)
            file.seek(size)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        for file in self._files:
            os.fdatasync(file.fileno())

    def close(self) -> None:
        """Close the files, keeping them."""
        for file in self._files:
            file.close()

    def _append(self, position: int, data: bytes) -> None:
        _write_all(self._files[position], data)
        self._sizes[position] += len(data)


class KeyWriter:
    """Output of one key.

    :param prefix: path without suffix, key and level included.
    :param dtype: integer type of the ids.
    :param partitions: order documents as Megatron does with that many partitions: the first,
        the (partitions + 1)th and so on, then the second and so on.
    :param resume: sizes to continue from, one per partition; ``None`` starts anew.
    :param collects: what is appended is not yet the output; a subclass makes it at the end.
    """

    def __init__(
        self,
        prefix: str,
        dtype: IdType,
        partitions: int = 1,
        resume: Sequence[SpoolSizes] | None = None,
        *,
        collects: bool = False,
    ) -> None:
        self._dtype = dtype
        self.prefix = prefix
        self.bin_path = Path(prefix + ".bin")
        self.idx_path = Path(prefix + ".idx")
        self._index_partial = Path(prefix + ".idx.partial")
        if resume is not None and len(resume) != partitions:
            raise ResumeError(
                "the checkpoint is of other partitions",
                evidence=f"{len(resume)} of them, not {partitions}",
                next="run the same command without --resume",
            )
        sizes = resume or [SpoolSizes()] * partitions
        is_direct = partitions == 1 and not collects
        self._all = _Spool(prefix, sizes[0] if is_direct else SpoolSizes())
        self._parts = [self._all]
        if not is_direct:
            self._parts = [_Spool(f"{prefix}.{i}", size) for i, size in enumerate(sizes)]

    @property
    def sizes(self) -> list[SpoolSizes]:
        """What has been written so far, by partition."""
        return [part.sizes for part in self._parts]

    @property
    def tokens(self) -> int:
        """Ids written so far."""
        return sum(size.tokens for size in self.sizes) // self._dtype.itemsize

    def append(self, block: KeyTokens) -> None:
        """Write the tokens of one block.

        :raises OSError: the disk is full, or fails.
        """
        if len(self._parts) == 1:
            self._parts[0].append(block)
            return
        first = sum(size.documents for size in self.sizes) // 4
        for part, share in zip(self._parts, self._deal(block, first), strict=True):
            part.append(share)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        for part in self._parts:
            part.sync()

    def cut(self, sizes: Sequence[SpoolSizes]) -> None:
        """Go back to what :attr:`sizes` was; the index begun meanwhile goes too."""
        self._index_partial.unlink(missing_ok=True)
        if self._parts[0] is not self._all:
            self._all.cut(SpoolSizes())
        for part, size in zip(self._parts, sizes, strict=True):
            part.cut(size)

    def prepare(self) -> None:
        """Write the index, beside the final files, and sync everything."""
        if self._parts[0] is not self._all:
            self._gather()
        with open(self._index_partial, "wb") as index:
            self._write_index(index)
            index.flush()
            os.fsync(index.fileno())
        self._all.sync()

    def publish(self) -> None:
        """Give the complete files their names, ``.idx`` last.

        An older index goes first: at no moment does an index stand beside another's data.
        """
        self.idx_path.unlink(missing_ok=True)
        os.replace(self._all.paths[0], self.bin_path)
        os.replace(self._index_partial, self.idx_path)
        self.discard()
        _sync_directory(self.bin_path.parent)

    def _gather(self) -> None:
        """Make the output of what the parts hold."""
        for part in self._parts:
            self._all.append_all(part)

    def close(self) -> None:
        """Close the partial files, keeping them."""
        for spool in (self._all, *self._parts):
            spool.close()

    def discard(self) -> None:
        """Close and remove the partial files."""
        self.close()
        for spool in (self._all, *self._parts):
            for path in spool.paths:
                path.unlink(missing_ok=True)
        self._index_partial.unlink(missing_ok=True)

    def _deal(self, block: KeyTokens, first: int) -> Iterator[KeyTokens]:
        """Each partition's share of a block whose first document is number ``first``."""
        documents = np.frombuffer(block.document_sequences, np.int32)
        lengths = np.frombuffer(block.sequence_lengths, np.int32)
        tokens = np.frombuffer(block.tokens, self._dtype)
        owner = (first + np.arange(len(documents))) % len(self._parts)
        sequence_owner = np.repeat(owner, documents)
        token_owner = np.repeat(sequence_owner, lengths)
        for part in range(len(self._parts)):
            yield KeyTokens(
                tokens[token_owner == part].tobytes(),
                lengths[sequence_owner == part].tobytes(),
                documents[owner == part].tobytes(),
            )

    def _write_index(self, index: IO[bytes]) -> None:
        sizes = self._all.sizes
        sequences, documents = sizes.lengths // 4, sizes.documents // 4
        index.write(MAGIC)
        index.write(struct.pack("<QBQQ", 1, _CODES[self._dtype], sequences, documents + 1))
        for lengths in self._all.integers(1):
            index.write(lengths.tobytes())
        pointer = 0
        for lengths in self._all.integers(1):
            ends = np.cumsum(lengths, dtype=np.int64) * self._dtype.itemsize + pointer
            starts = np.concatenate(([pointer], ends[:-1])).astype(np.int64)
            index.write(starts.tobytes())
            pointer = int(ends[-1])
        first = 0
        index.write(struct.pack("<q", first))
        for counts in self._all.integers(2):
            firsts = np.cumsum(counts, dtype=np.int64) + first
            index.write(firsts.tobytes())
            first = int(firsts[-1])


SPOOL_SUFFIXES = (".bin", ".lengths", ".documents")


def open_at(path: Path, size: int) -> IO[bytes]:
    """Open a partial file, alone, cut to ``size`` bytes and positioned there."""
    # No link is followed: nobody names this file, so it must be the run's own.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    file = open(os.open(path, flags, 0o666), "r+b", buffering=0)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise OutputError(
            "another run is writing this output",
            evidence=f"{path} is locked",
            next="wait for it, or choose another --output-prefix",
        ) from error
    found = os.fstat(file.fileno()).st_size
    if found < size:
        file.close()
        raise ResumeError(
            "the partial output is shorter than the checkpoint says",
            evidence=f"{path}: {found} bytes, not {size}",
            next="run the same command without --resume",
        )
    file.truncate(size)
    file.seek(size)
    return file


def _write_all(file: IO[bytes], data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
