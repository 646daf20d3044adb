"""Files that look like recordings: documents with one thing changed, under a right checksum."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from accel_bridge.recording import MAGIC
from accel_bridge.recording._file import FORMAT

#: What may stand where another value stood.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x",
        "\ud800",
        "\x1b[2J\x1b]0;title\x07",
        "$\\frac{",
        "\u202e",
        "9" * 99,
    ),
    *(0, -1, 1, 7, 2**31, 2**63, 2**64, -(2**64), 10**400, 0.5, -0.5, 1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf")),
    *([], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, [0] * 9, ["x"] * 4, "A" * 1024, "AAAA"),
)


def packed(text: bytes, magic: bytes = MAGIC) -> bytes:
    """A file whose document is ``text``."""
    payload = zstandard.ZstdCompressor(level=1).compress(text)
    digest = hashlib.sha256(payload).hexdigest()
    head = {"format": FORMAT, "bytes": len(payload), "sha256": digest}
    return magic + json.dumps(head).encode() + b"\n" + payload


def document(path: Path) -> Any:
    """The JSON document of a recording."""
    payload = path.read_bytes()[len(MAGIC) :].partition(b"\n")[2]
    return json.loads(zstandard.ZstdDecompressor().decompress(payload))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, below in items:
            yield from places(below, (*at, key))


def changed(value: Any, source: random.Random, paths: list[tuple[Any, ...]]) -> Any:
    """The document with one value replaced, removed, doubled or renamed."""
    made = json.loads(json.dumps(value))
    path = source.choice(paths)
    if not path:
        return source.choice(VALUES)
    owner = made
    for key in path[:-1]:
        owner = owner[key]
    key, how = path[-1], source.random()
    if how < 0.7:
        owner[key] = source.choice(VALUES)
    elif how < 0.8:
        del owner[key]
    elif isinstance(owner, list):
        owner.insert(key, owner[key])
    else:
        owner[f"{key}\x1b[31m"] = owner.pop(key)
    return made
