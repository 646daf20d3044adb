"""Text that every Python has: the standard library's own sources."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from accel_bridge.errors import BridgeError

#: Enough text for a minute of training (bytes).
WANTED = 6_000_000

#: Less text than this trains nothing worth a curve (bytes).
NEEDED = 500_000


def sources(folder: Path | None = None) -> Iterator[str]:
    """Text of the standard library's modules and packages, in the order of their paths.

    :param folder: look here instead of in this Python's standard library.
    """
    root = folder or Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        # Installed packages are not part of Python; its test data holds deliberate nonsense.
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(inside):
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a few sources declare another encoding


def write_corpus(path: Path, folder: Path | None = None) -> tuple[int, int]:
    """Write JSON lines with one source file a document; (documents, bytes of text).

    :raises BridgeError: this Python comes without its sources.
    """
    documents = size = 0
    with path.open("w", encoding="utf-8") as file:
        for text in sources(folder):
            file.write(json.dumps({"text": text}) + "\n")
            documents += 1
            size += len(text.encode())
            if size >= WANTED:
                break
    if size < NEEDED:
        raise BridgeError(
            "This Python has no sources of its standard library to train on.",
            evidence=f"{size} bytes of text in {folder or sysconfig.get_path('stdlib')}",
            next="use a Python with its .py files, or your own text with accel-bridge preprocess",
        )
    return documents, size
