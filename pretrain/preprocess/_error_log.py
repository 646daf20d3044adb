"""The list of skipped records: one JSON object a line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .writer import open_at

#: How an entry begins.
_BEGINNING = re.compile(rb'\{"file": "(?:[^"\\]|\\.)*", "(?:line|row)": \d+, "key": ')


def is_error_log(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is such a list."""
    return _BEGINNING.match(head) is not None


def partial_path(path: str) -> str:
    """Where the list is written until the run is whole; an earlier list stays until then."""
    return os.path.realpath(path) + ".partial"


class ErrorLog:
    """Writes ``path``, or nothing where that is ``None``.

    :param size: bytes to keep of an interrupted run's list; the rest is its lost end.
    """

    def __init__(self, path: str | None, size: int) -> None:
        self._file = None if path is None else open_at(Path(partial_path(path)), size)
        self._path = path
        self.size = size

    def add(self, entry: Mapping[str, object]) -> None:
        if self._file is not None:
            line = json.dumps(dict(entry), ensure_ascii=False).encode(errors="replace") + b"\n"
            self._file.write(line)
            self.size += len(line)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        if self._file is not None:
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Close the file, keeping what is written for a resumed run."""
        if self._file is not None:
            self._file.close()

    def publish(self) -> None:
        """Put the whole list in the place of an earlier one."""
        self.close()
        if self._path is not None:
            os.replace(partial_path(self._path), os.path.realpath(self._path))

    def discard(self) -> None:
        """Remove what was written."""
        self.close()
        if self._path is not None:
            Path(partial_path(self._path)).unlink(missing_ok=True)
