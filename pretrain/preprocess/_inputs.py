"""Input files: which ones, what they hold, and their bytes."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from ._errors import InputError

#: Endings that say what a file holds; anything else is JSON lines, as Megatron's tool takes it.
_FORMATS = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "jsonl",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

#: Name of standard input, on the command line and in messages.
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Source:
    """One input file.

    :param path: its path, or ``-``.
    :param format: ``jsonl``, ``parquet``, ``csv`` or ``tsv``.
    :param compression: ``gzip``, ``zstd``, ``bz2`` or ``None``.
    :param size: bytes on disk; 0 for standard input.
    """

    path: str
    format: str
    compression: str | None
    size: int
    modified_ns: int

    @property
    def name(self) -> str:
        """How messages call it."""
        return "standard input" if self.path == STANDARD_INPUT else self.path

    def identity(self) -> list[object]:
        """Changes when its content may have changed."""
        return [self.path, self.format, self.size, self.modified_ns]


def find_sources(inputs: Sequence[str], input_format: str | None = None) -> list[Source]:
    """The files that ``--input`` names: in the given order, and sorted by name within a glob
    or a folder (which is searched to any depth, for files with a known ending).

    :raises InputError: nothing is there.
    """
    return [_source(path, input_format) for item in inputs for path in _expand(item)]


def _expand(item: str) -> list[str]:
    if item == STANDARD_INPUT:
        return [item]
    if os.path.isdir(item):
        found = sorted(
            str(path)
            for path in Path(item).rglob("*")
            if path.is_file() and _classify(path.name)[0] is not None
        )
        if not found:
            raise InputError(
                "the input folder has no file of a known format",
                evidence=f"{item}: looked for {', '.join((*_FORMATS, *_COMPRESSIONS))}",
                next="name the files, and --input-format if their endings say nothing",
            )
        return found
    if os.path.exists(item):
        return [item]
    found = sorted(glob.glob(item, recursive=True))
    if not found:
        raise InputError(
            "no such input",
            evidence=f"--input {item} is no file and no folder, and matches nothing as a glob",
            next="correct the path; quote globs so that the shell leaves them alone",
        )
    return [path for match in found for path in _expand(match)]


def _classify(name: str) -> tuple[str | None, str | None]:
    stem, ending = os.path.splitext(name)
    compression = _COMPRESSIONS.get(ending)
    if compression:
        ending = os.path.splitext(stem)[1]
    return _FORMATS.get(ending), compression


def _source(path: str, input_format: str | None) -> Source:
    if path == STANDARD_INPUT:
        return Source(path, input_format or "jsonl", None, 0, 0)
    found, compression = _classify(os.path.basename(path))
    status = os.stat(path)
    kind = input_format or found or "jsonl"
    return Source(path, kind, compression, status.st_size, status.st_mtime_ns)


@contextmanager
def open_bytes(source: Source) -> Iterator[IO[bytes]]:
    """The decompressed bytes of ``source``.

    :raises InputError: it cannot be read, or its compressed data is damaged.
    """
    try:
        with _open(source) as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            "an input file cannot be read",
            evidence=f"{source.name}: {type(error).__name__}: {error}",
            next="check the file: it may be missing, truncated, or not what its ending says",
        ) from error


def _open(source: Source) -> IO[bytes]:
    if source.path == STANDARD_INPUT:
        return io.FileIO(sys.stdin.fileno(), closefd=False)
    if source.compression == "gzip":
        return cast(IO[bytes], gzip.open(source.path, "rb"))
    if source.compression == "bz2":
        return bz2.open(source.path, "rb")
    if source.compression == "zstd":
        return _open_zstd(source.path)
    return open(source.path, "rb")


def _open_zstd(path: str) -> IO[bytes]:
    from ._zstd import ZstdFile

    return cast(IO[bytes], ZstdFile(path))
