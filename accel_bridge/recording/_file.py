"""The file of a recording: two lines of text, then JSON compressed with zstd.

The first line names the format, the second is a JSON object with its version and with length and
SHA-256 of what follows; whoever looks at the file with ``head -2`` sees what it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

from accel_bridge._errors import BridgeError
from accel_bridge._extras import install
from accel_bridge.recording._document import Recording

MAGIC: Final = b"accel-bridge recording\n"
#: Raised when a field of the document changes its meaning.
FORMAT: Final = 1
#: zstd level: 10 is within 3% of the best on these files and takes milliseconds.
LEVEL: Final = 10


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

    :raises OSError: the folder cannot be written.
    """
    check_zstd()
    import zstandard

    text = json.dumps(recording.as_document(), separators=(",", ":"), default=str)
    payload = zstandard.ZstdCompressor(level=LEVEL).compress(text.encode())
    head = {
        "format": FORMAT,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    data = MAGIC + json.dumps(head).encode() + b"\n" + payload
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)
    return len(data)


def read(path: Path) -> Recording:
    """Read a file.

    :raises RecordingError: no such file, no recording, truncated, edited, or of a later format.
    """
    check_zstd()
    import zstandard

    payload = _payload(path)
    try:
        text = zstandard.ZstdDecompressor().decompress(payload)
        return Recording.from_document(json.loads(text))
    except (KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
        # The checksum is right, so it was written like this: by something else than write().
        raise RecordingError(
            f"{path} is a recording that cannot be understood.",
            evidence=f"{type(error).__name__}: {error}",
            next="record it again with this version of accel_bridge",
        ) from error


def _payload(path: Path) -> bytes:
    """The compressed document, after every check of the head."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"The recording {path} cannot be read.",
            evidence=str(error),
            next="accel-bridge parity record --out FILE -- ARGUMENTS writes one",
        ) from error
    if not data.startswith(MAGIC):
        raise RecordingError(
            f"{path} is not a recording.",
            evidence=f"it begins with {data[: len(MAGIC)]!r} and not with {MAGIC!r}",
            next="give a file that `accel-bridge parity record` wrote",
        )
    line, newline, payload = data[len(MAGIC) :].partition(b"\n")
    head = _head(path, line if newline else b"")
    if head["format"] > FORMAT:
        raise RecordingError(
            f"{path} was written by a later version of accel_bridge.",
            evidence=f"format {head['format']}; this version reads formats up to {FORMAT}",
            next="git pull in your clone of accel_bridge, and install it again",
        )
    if len(payload) < head["bytes"]:
        raise RecordingError(
            f"{path} is truncated.",
            evidence=f"{len(payload)} of {head['bytes']} bytes",
            next="copy it again, or record it again",
        )
    found = hashlib.sha256(payload).hexdigest()
    if found != head["sha256"] or len(payload) != head["bytes"]:
        raise RecordingError(
            f"{path} was changed after it was written.",
            evidence=(f"SHA-256 when written: {head['sha256']}", f"SHA-256 now: {found}"),
            next="copy the original again, or record it again",
        )
    return payload


def _head(path: Path, line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
        if not (
            isinstance(head["format"], int)
            and isinstance(head["bytes"], int)
            and isinstance(head["sha256"], str)
        ):
            raise TypeError("format, bytes or sha256 is of another type")
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(
            f"The head of {path} is damaged.",
            evidence=f"second line {line[:80]!r}: {type(error).__name__}: {error}",
            next="copy it again, or record it again",
        ) from error
    return dict(head)
