"""Puts stand-ins under their libraries' names."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from accel_bridge.libraries._library import Library

_FOLDER: Final = Path(__file__).parent


class AbsentNameError(ModuleNotFoundError):
    """A stand-in has no such module or name."""


class StandInFinder(MetaPathFinder):
    """Finds the stand-ins of some libraries; belongs at the head of ``sys.meta_path``.

    :param libraries: those that have a stand-in in this process.
    """

    def __init__(self, libraries: Iterable[Library]) -> None:
        self._libraries = {root: library for library in libraries for root in library.roots}

    def serves(self, root: str) -> bool:
        """Whether the top-level module ``root`` is a stand-in's."""
        return root in self._libraries

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """A stand-in's module; None for any other name.

        :raises AbsentNameError: the stand-in has no module of that name. An import of a missing
            name from a package (``from transformer_engine.pytorch import X``) ends here as well.
        """
        root, _, inner = fullname.partition(".")
        library = self._libraries.get(root)
        if library is None:
            return None
        if inner:
            found = PathFinder.find_spec(fullname, path)
            if found is None:
                raise _absent(fullname, library)
            return found
        package = _FOLDER / root / "__init__.py"
        if package.is_file():
            return spec_from_file_location(
                root, package, submodule_search_locations=[str(package.parent)]
            )
        return spec_from_file_location(root, _FOLDER / f"{root}.py")

    def forget(self) -> None:
        """Remove the stand-ins' modules from ``sys.modules``."""
        for name in list(sys.modules):
            if name.partition(".")[0] in self._libraries:
                del sys.modules[name]


def _absent(fullname: str, library: Library) -> AbsentNameError:
    parent, _, name = fullname.rpartition(".")
    module = sys.modules.get(parent)
    known = [one for one in dir(module) if not one.startswith("_")] if module else []
    near = difflib.get_close_matches(name, known, n=1)
    nearest = f"; the nearest name there is {near[0]!r}" if near else ""
    # Without `name`: importlib would then swallow it in favour of its own, shorter message.
    return AbsentNameError(
        f"accel_bridge's stand-in for {library.name} {library.version} has no {fullname}{nearest}\n"
        f"  evidence: {library.name} is not the real library here (`accel-bridge libraries`)\n"
        f"  next:     turn off the feature that needs it, or install the real "
        f"{library.distribution}; docs/libraries.md lists what is served"
    )
