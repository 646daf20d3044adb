"""The file of a recording: two lines of text, then JSON compressed with zstd.

The first line names the format, the second is a JSON object with its version and with length and
SHA-256 of what follows; whoever looks at the file with ``head -2`` sees what it is.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import install
from accel_bridge.process.outputs import write_output
from accel_bridge.recording._document import Recording

if TYPE_CHECKING:
    from accel_bridge.recording._wire import Head

T = TypeVar("T")

MAGIC: Final = b"accel-bridge recording\n"
#: Raised when a field of the document changes its meaning.
FORMAT: Final = 1
#: Longest head line, largest file and longest document that are read, in bytes. A document of 70
#: billion parameters and a thousand steps has about 40 MB.
HEAD: Final = 1000
FILE: Final = 128 << 20
DOCUMENT: Final = 128 << 20
#: Bytes that the objects of a document may take in memory, by :func:`_footprint`.
MEMORY: Final = 384 << 20
#: zstd level: 10 is within 3% of the best on these files and takes milliseconds.
LEVEL: Final = 10


_WRITTEN_BY: Final = {
    "recording": "accel-bridge parity record --out FILE -- ARGUMENTS writes one",
    "capsule": "accel-bridge parity capsule A.rec B.rec -- ARGUMENTS writes one",
}


class RecordingError(BridgeError):
    """A file holds no recording that can be read."""


def check_zstd() -> None:
    """Stop before a run whose recording could not be written.

    :raises RecordingError: the package zstandard is missing.
    """
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise RecordingError(
            "The package zstandard is not installed; recordings are compressed with it.",
            evidence=str(error),
            next=install("report"),
        ) from error


def write(recording: Recording, path: Path) -> int:
    """Write the file, whole or not at all; its size in bytes.

    :raises OutputError: it cannot be written; an earlier file is unchanged.
    :raises RecordingError: :func:`read` would refuse the file.
    """
    document = recording.as_document()
    text = json.dumps(document, separators=(",", ":"), default=str).encode()
    if not within_memory(text):
        raise RecordingError(
            f"The recording has {len(text) >> 20} MB, which is too much to be read again.",
            evidence=f"{len(recording.steps)} steps, {len(recording.observations)} measurements",
            next="record with a larger --every, or fewer steps",
        )
    return as_file(MAGIC, text, path)


def as_file(magic: bytes, content: bytes, path: Path) -> int:
    """Compress ``content`` into a file of the format that ``magic`` names; its size in bytes."""
    check_zstd()
    import zstandard

    payload = zstandard.ZstdCompressor(level=LEVEL).compress(content)
    head = {
        "format": FORMAT,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    data = magic + json.dumps(head).encode() + b"\n" + payload
    write_output(path, data, option=f"the {magic.split()[1].decode()}")
    return len(data)


def read(path: Path) -> Recording:
    """Read a file.

    :raises RecordingError: no such file, no recording, truncated, edited, or of a later format.
    """

    def parsed() -> Recording:
        text = read_payload(path, MAGIC, "recording")
        if len(text) > DOCUMENT:
            raise ValueError(f"its document is longer than {DOCUMENT >> 20} MB")
        if not within_memory(text):
            raise ValueError(f"its document would take more than {MEMORY >> 20} MB of memory")
        from accel_bridge.recording import _wire

        return _wire.recording(text)

    return understood(path, "recording", parsed)


def understood(path: Path, what: str, parsed: Callable[[], T]) -> T:
    """What ``parsed`` makes of a file's content.

    :raises RecordingError: it cannot make anything of it.
    """
    check_zstd()
    import zstandard

    try:
        return parsed()
    except (ValueError, RecursionError, zstandard.ZstdError) as error:
        # The checksum is right, so it was written like this: by something else than write().
        raise RecordingError(
            f"{path} is a {what} that cannot be understood.",
            evidence=_in_a_line(error),
            next="record it again with this version of accel_bridge",
        ) from error


def read_payload(path: Path, magic: bytes, what: str, most: int = DOCUMENT) -> bytes:
    """What was compressed, at most ``most`` bytes and one, after every check of the file."""
    check_zstd()
    import zstandard

    payload = _payload(path, magic, what)
    with zstandard.ZstdDecompressor(max_window_size=DOCUMENT).stream_reader(payload) as reader:
        content: bytes = reader.read(most + 1)
    return content


def within_memory(text: bytes) -> bool:
    """Whether a JSON text is short enough, and so is what it becomes in memory."""
    return len(text) <= DOCUMENT and _footprint(text) <= MEMORY


def _footprint(text: bytes) -> int:
    """Bytes that the objects of a JSON text take at most, about: small texts hold many objects."""
    texts, values = text.count(b'"') // 2, text.count(b",") + text.count(b":")
    # One character beyond ASCII makes every other one of its text four bytes wide.
    wide = 6 if b"\\u" in text or not text.isascii() else 1
    containers = 88 * text.count(b"[") + 184 * text.count(b"{")
    return containers + 50 * texts + 32 * values + wide * len(text)


def _in_a_line(error: BaseException) -> str:
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def _content(path: Path, magic: bytes) -> bytes:
    """All bytes of a file that may be a recording."""
    # A device or a pipe may have no end, and opening a pipe may wait for ever.
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise OSError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is neither a file nor a link to one")
    with path.open("rb") as file:
        data = file.read(len(magic) + HEAD)
        if not data.startswith(magic):
            return data
        data += file.read(FILE + 1)
    if len(data) > FILE:
        raise OSError(f"it is larger than {FILE >> 20} MB")
    return data


def _payload(path: Path, magic: bytes, what: str) -> bytes:
    """The compressed document, after every check of the head."""
    try:
        data = _content(path, magic)
    except (OSError, ValueError) as error:
        raise RecordingError(
            f"The {what} {path} cannot be read.",
            evidence=str(error),
            next=_WRITTEN_BY[what],
        ) from error
    if not data.startswith(magic):
        raise RecordingError(
            f"{path} is not a {what}.",
            evidence=f"it begins with {data[: len(magic)]!r} and not with {magic!r}",
            next=_WRITTEN_BY[what],
        )
    line, newline, payload = data[len(magic) :].partition(b"\n")
    head = _head(path, line if newline and len(line) <= HEAD else b"")
    if head.format > FORMAT:
        raise RecordingError(
            f"{path} was written by a later version of accel_bridge.",
            evidence=f"format {head.format}; this version reads formats up to {FORMAT}",
            next="git pull in your clone of accel_bridge, and install it again",
        )
    if len(payload) < head.bytes:
        raise RecordingError(
            f"{path} is truncated.",
            evidence=f"{len(payload)} of {head.bytes} bytes",
            next="copy it again, or record it again",
        )
    found = hashlib.sha256(payload).hexdigest()
    if found != head.sha256 or len(payload) != head.bytes:
        raise RecordingError(
            f"{path} was changed after it was written.",
            evidence=(f"SHA-256 when written: {head.sha256}", f"SHA-256 now: {found}"),
            next="copy the original again, or record it again",
        )
    return payload


def _head(path: Path, line: bytes) -> Head:
    from accel_bridge.recording import _wire

    try:
        return _wire.parsed(_wire.Head, line)
    except ValueError as error:
        raise RecordingError(
            f"The head of {path} is damaged.",
            evidence=f"second line {line[:80]!r}: {_in_a_line(error)}",
            next="copy it again, or record it again",
        ) from error
