"""Input files: which ones, what they hold, and their bytes, compressed or not."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import json
import os
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, cast

from accel_bridge.process.outputs import HEAD_BYTES

from ._checkpoint import CHECKPOINT_SUFFIX, is_checkpoint
from ._error_log import is_error_log
from .errors import InputError
from .records import BadRecord
from .writer import SPOOL_SUFFIXES

#: Endings that say what a file holds; anything else is JSON lines, as Megatron's tool takes it.
_FORMATS = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}

_READ_BYTES: Final = 1 << 20

#: Name of standard input, on the command line and in messages.
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Source:
    """One input file.

    :param path: its path, or ``-``.
    :param format: ``jsonl``, ``array`` (one JSON list), ``parquet``, ``csv``, ``tsv`` or ``text``.
    :param compression: ``gzip``, ``zstd``, ``bz2`` or ``None``.
    :param size: bytes on disk; 0 for standard input.
    """

    path: str
    format: str
    compression: str | None
    size: int
    modified_ns: int
    #: Whether it can be read twice: a file can, a pipe cannot.
    is_rereadable: bool = True

    @property
    def name(self) -> str:
        """How messages call it."""
        return "standard input" if self.path == STANDARD_INPUT else self.path

    def identity(self) -> list[object]:
        """Changes when its content may have changed."""
        return [self.path, self.format, self.size, self.modified_ns]


def find_sources(
    inputs: Sequence[str], input_format: str | None = None, own: Collection[str] = ()
) -> list[Source]:
    """The files that ``--input`` names: in the given order, and sorted by name within a glob
    or a directory (which is searched to any depth, for files with a known ending).

    :param own: what this command writes. Where a directory or a glob finds it, and the notes of any
        other run, it is left out: output beside the input does not become input.
    :raises InputError: nothing is there, or it cannot be read.
    """
    ours = {os.path.realpath(path) for path in own}
    return [_source(path, input_format) for item in inputs for path in _expand(item, ours)]


def with_arrays(sources: Sequence[Source]) -> list[Source]:
    """The sources, with ``array`` as the format of files that hold one JSON list of records."""
    return [replace(one, format="array") if _is_array(one) else one for one in sources]


def _is_array(source: Source) -> bool:
    if source.format != "jsonl" or not source.is_rereadable:
        return False
    with open_bytes(source) as file:
        return file.read(HEAD_BYTES).lstrip().startswith(b"[")


def _expand(item: str, own: Collection[str]) -> list[str]:
    if item == STANDARD_INPUT:
        return [item]
    if os.path.isdir(item):
        found = [path for path in _files_below(item) if not _is_output(path, own)]
        if not found:
            raise InputError(
                "the input directory has no file of a known format",
                evidence=f"{item}: looked for {', '.join((*_FORMATS, *_COMPRESSIONS))}",
                next="name the files, and --input-format if their endings say nothing",
            )
        return found
    if os.path.lexists(item):
        return [item]
    found = [path for path in sorted(glob.glob(item, recursive=True)) if not _is_output(path, own)]
    if not found:
        raise InputError(
            "no such input",
            evidence=f"--input {item} is no file and no directory, and matches nothing as a glob",
            next="correct the path; quote globs so that the shell leaves them alone",
        )
    return [path for match in found for path in _expand(match, own)]


def _files_below(directory: str) -> list[str]:
    """Files with a known ending, by name; links to directories are not followed."""

    def stop(error: OSError) -> None:
        raise _unreadable(str(error.filename), error)

    return sorted(
        path
        for inside, _, names in os.walk(str(Path(directory)), onerror=stop)
        for path in (os.path.join(inside, name) for name in names)
        if _classify(path)[0] is not None and os.path.isfile(path)
    )


def _is_output(path: str, own: Collection[str]) -> bool:
    """Whether a run of this command made the file, or this one will."""
    if os.path.realpath(path) in own:
        return True
    if path.endswith(CHECKPOINT_SUFFIX):
        return _starts_with(path, is_checkpoint)
    if path.endswith((".json", ".jsonl")):
        return _starts_with(path, is_error_log)
    return path.endswith(tuple(suffix + ".partial" for suffix in SPOOL_SUFFIXES))


def _starts_with(path: str, test: Callable[[bytes], bool]) -> bool:
    try:
        with open(path, "rb") as file:
            return test(file.read(HEAD_BYTES))
    except OSError:
        return False  # reading it in earnest says what is wrong


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(
        "an input cannot be read",
        evidence=f"{path}: {error.strerror or error}",
        next="see where it leads and whether this user may read it, or leave it out",
    )


def _classify(name: str) -> tuple[str | None, str | None]:
    stem, ending = os.path.splitext(name)
    compression = _COMPRESSIONS.get(ending)
    if compression:
        ending = os.path.splitext(stem)[1]
    return _FORMATS.get(ending), compression


def _source(path: str, input_format: str | None) -> Source:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise InputError(
                "standard input is closed",
                evidence="--input -",
                next="give the command a pipe or a file: ... < FILE",
            )
        return Source(path, input_format or "jsonl", None, 0, 0, is_rereadable=False)
    found, compression = _classify(os.path.basename(path))
    try:
        status = os.stat(path)
        regular = stat.S_ISREG(status.st_mode)
        if (
            not regular
            and not stat.S_ISFIFO(status.st_mode)
            and not os.path.samefile(path, os.devnull)
        ):
            raise OSError("a device, socket or directory, not a file or pipe")
        if regular:
            open(path, "rb").close()
    except OSError as error:
        raise _unreadable(path, error) from error
    kind = input_format or found or "jsonl"
    source = Source(path, kind, compression, status.st_size, status.st_mtime_ns, regular)
    # Megatron's tool reads JSON lines whatever the file is called.
    if kind == "text" and not input_format and regular and _begins_with_object(source):
        return replace(source, format="jsonl")
    return source


def _begins_with_object(source: Source) -> bool:
    """Whether the first line is a JSON object."""
    with open_bytes(source) as stream:
        line = stream.readline(1 << 20)
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def bad_record(source: Source, number: int, bad: BadRecord, advice: str) -> InputError:
    """The error for a record that ends a run.

    :param number: of its line or row in the file, from 1.
    :param advice: what else fixes it, as a continuation of "fix it, ".
    """
    is_line = source.format == "jsonl"
    where = f"{source.name}:{number}" if is_line else f"{source.name} row {number}"
    if is_line and number == 1 and bad.reason.startswith("not JSON"):
        advice += "; if it is plain text: --input-format text"
    return InputError(
        f"a bad record in {where}",
        evidence=[f"{where}: {bad.reason}"],
        next=f"fix it, {advice}",
    )


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
        return open(sys.stdin.fileno(), "rb", closefd=False)
    if source.compression == "gzip":
        return cast(IO[bytes], gzip.open(source.path, "rb"))
    if source.compression == "bz2":
        return bz2.open(source.path, "rb")
    if source.compression == "zstd":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(source.path, compression="zstd"), _READ_BYTES)
    return open(source.path, "rb")
