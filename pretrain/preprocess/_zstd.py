"""Reading .zst files, with an error for truncated ones."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import zstandard

if TYPE_CHECKING:
    from typing_extensions import Buffer

_READ_BYTES = 1 << 20


class ZstdFile(io.RawIOBase):
    """Decompressed bytes of all frames of a .zst file.

    zstandard's own reader takes the end of a truncated file for the end of its data.
    """

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 (closed in close)
        self._context = zstandard.ZstdDecompressor()
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._pending = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes; empty at the end.

        :raises OSError: the data is damaged or ends inside a frame.
        """
        while not self._pending and self._fill():
            pass
        end = len(self._pending) if size < 0 else size
        data = bytes(self._pending[:end])
        self._pending = self._pending[end:]
        return data

    def readinto(self, buffer: Buffer) -> int:
        """See :meth:`read`; this is what ``io.BufferedReader`` calls."""
        target = memoryview(buffer)
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def _fill(self) -> bool:
        """Decompress some more; ``False`` at the end of the file."""
        unused = b"" if self._frame is None else self._frame.unused_data
        if self._frame is not None and self._frame.eof:
            self._frame = None
        compressed = unused or self._file.read(_READ_BYTES)
        if not compressed:
            if self._frame is not None:
                raise OSError("the file ends inside a zstd frame")
            return False
        if self._frame is None:
            self._frame = self._context.decompressobj()
        try:
            self._pending = memoryview(self._frame.decompress(compressed))
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
