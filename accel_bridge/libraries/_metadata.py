"""What :mod:`importlib.metadata` says of a shim."""

from __future__ import annotations

import os
import re
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from accel_bridge.libraries._library import Library

_FOLDER: Final = Path(__file__).parent


class ShimDistribution(Distribution):
    """Name, version and top-level modules of a library that has a shim.

    Callers ask for them to learn whether a module that they can import is the library
    (Transformers, Accelerate), and which version it is.
    """

    def __init__(self, library: Library) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {library.distribution}\n"
            f"Version: {library.version}\nSummary: accel_bridge's shim\n",
            "top_level.txt": "".join(f"{root}\n" for root in library.roots),
        }

    def is_called(self, name: str) -> bool:
        """Whether ``name`` is this distribution's, in any spelling."""
        return _normalized(name) == _normalized(self.metadata["Name"])

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(str(filename))

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return _FOLDER / path


def _normalized(name: str) -> str:
    """Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()
