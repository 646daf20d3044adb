"""The lines of a file that grows."""

from __future__ import annotations

from typing import BinaryIO, Final

#: Seconds between two looks at a log.
LOOK: Final = 0.1
#: Seconds in which what outlives a command for a moment says its last words.
SETTLE: Final = 0.2
#: Bytes that are read at once, and the longest line that is waited for.
_CHUNK: Final = 1 << 16


class Lines:
    """Reads what has been added to a file since the last time.

    :param file: open for reading, at its beginning or wherever reading should begin.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._rest = b""

    def new(self, last: bool = False) -> list[str]:
        """The lines that are complete now; with ``last`` the incomplete one too."""
        found: list[str] = []
        while data := self._file.read(_CHUNK):
            *whole, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
            found += [line.decode(errors="replace") for line in whole]
            if len(self._rest) > _CHUNK:  # no line of a log is so long
                self._rest = b""
        if last and self._rest:
            found.append(self._rest.decode(errors="replace"))
            self._rest = b""
        return found
