"""The list of skipped records: one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping

from .errors import ResumeError

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
        self._file = None
        self._path = path
        self.size = size
        if path is not None:
            partial = partial_path(path)
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            found = os.fstat(descriptor).st_size
            if found < size:
                os.close(descriptor)
                raise ResumeError(
                    "the error log is shorter than the checkpoint says",
                    evidence=f"{partial}: {found} bytes, not {size}",
                    next="run the same command without --resume",
                )
            self._file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115 (closed in close)
            self._file.truncate(size)
            self._file.seek(size)

    def add(self, entry: Mapping[str, object]) -> None:
        """Append ``entry``."""
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
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial_path(self._path))
