"""The file of a capsule.

It is a recording's (two lines of text, then zstd) with another first line. What is compressed is
eight bytes with the length of a JSON document, the document, and the tensors' bytes one after the
other. Nothing in it is code.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

from accel_bridge.recording._capsule import ROOM, Capsule, Operator, Value
from accel_bridge.recording._file import (
    DOCUMENT,
    RecordingError,
    as_file,
    read_payload,
    understood,
    within_memory,
)

CAPSULE_MAGIC: Final = b"accel-bridge capsule\n"
_LENGTH: Final = 8
_PLAIN: Final = (
    *("module", "step", "precision", "layout", "about", "arguments", "environment", "patches"),
)


def write_capsule(capsule: Capsule, path: Path) -> int:
    """Write the file, whole or not at all; its size in bytes.

    :raises OutputError: it cannot be written.
    :raises RecordingError: zstandard is missing, or there is too much to be read again.
    """
    document = {
        **{name: getattr(capsule, name) for name in _PLAIN},
        "values": [_value_as_json(value) for value in capsule.values],
        "ranks": [[_operator_as_json(one) for one in operators] for operators in capsule.ranks],
    }
    text = json.dumps(document, separators=(",", ":"), default=str).encode()
    if not within_memory(text):
        raise RecordingError(
            f"The capsule of {capsule.module} has {len(text) >> 20} MB without its tensors, which "
            "is too much to be read again.",
            evidence=f"{sum(map(len, capsule.ranks))} operators",
            next="name a smaller module with --module",
        )
    data = b"".join(value.data for value in capsule.values if value.data is not None)
    return as_file(CAPSULE_MAGIC, len(text).to_bytes(_LENGTH, "little") + text + data, path)


def read_capsule(path: Path) -> Capsule:
    """Read a file.

    :raises RecordingError: no such file, no capsule, truncated, edited, or of a later format.
    """

    def parsed() -> Capsule:
        return _parsed(read_payload(path, CAPSULE_MAGIC, "capsule", DOCUMENT + ROOM))

    return understood(path, "capsule", parsed)


def _parsed(content: bytes) -> Capsule:
    from accel_bridge.recording import _wire

    length = int.from_bytes(content[:_LENGTH], "little")
    text, data = content[_LENGTH : _LENGTH + length], memoryview(content)[_LENGTH + length :]
    if not within_memory(text):
        raise ValueError("its document would take too much memory")
    return _wire.capsule(text, data)


def _value_as_json(value: Value) -> list[Any]:
    moments = value.moments
    return [
        value.digest,
        value.dtype,
        value.shape,
        [moments.count, moments.total, moments.squares, moments.largest],
        base64.b64encode(value.sample.tobytes()).decode(),
        value.data is not None,
    ]


def _operator_as_json(one: Operator) -> list[Any]:
    """Without the part where there is none, as files were before there were any."""
    found = [getattr(one, name) for name in Operator.__slots__]
    return found if one.part_inputs else found[:-2]
