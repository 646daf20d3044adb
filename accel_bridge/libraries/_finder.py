"""Puts shims under their libraries' names."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

from accel_bridge.libraries._decision import installed_version
from accel_bridge.libraries._library import LIBRARIES, Library
from accel_bridge.libraries._modules import ShimLoader, find_public
from accel_bridge.libraries.transformer_engine_torch._loader import (
    EXTENSION,
    ROOTS,
    ExtensionLoader,
)
from accel_bridge.process.import_hook import importer

#: Where the shims are.
DIRECTORY: Final = Path(__file__).parent


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
        return DIRECTORY / path


def _normalized(name: str) -> str:
    """Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


#: Modules of shims that are not in place. The next activation goes on with them: modules that hold
#: their classes, Megatron's above all, stay imported, and a second copy would not be theirs.
_cached: Final[dict[str, ModuleType]] = {}


class AbsentNameError(ModuleNotFoundError):
    """A shim has no such module or name."""


class ShimFinder(MetaPathFinder):
    """Finds the shims of some libraries; belongs at the head of ``sys.meta_path``.

    :param libraries: those that have a shim in this process.
    :param directory: holds a package or module for each of their roots.
    :param extension: completes NVIDIA's own Transformer Engine.
    :param hidden: libraries of which nothing real can work here.
    """

    def __init__(
        self,
        libraries: Iterable[Library],
        directory: Path = DIRECTORY,
        extension: ExtensionLoader | None = None,
        hidden: Container[str] = (),
    ) -> None:
        self._libraries = {root: library for library in libraries for root in library.roots}
        self._parts = {
            part
            for library in self._libraries.values()
            for part, distribution in library.parts
            if library.name not in hidden and installed_version(distribution)
        }
        self._extension = extension
        self._directory = directory

    def install(self) -> None:
        """Stand before the other finders."""
        for name in filter(self._is_ours, list(_cached)):
            sys.modules[name] = _cached.pop(name)
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Leave ``sys.meta_path``, and take the shims' modules along."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for name in list(sys.modules):
            if self._is_ours(name):
                _cached[name] = sys.modules.pop(name)

    def serves(self, root: str) -> bool:
        """Whether the top-level module ``root`` is a shim's, or our extension."""
        return root in self._libraries or (self._extension is not None and root == EXTENSION)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """A shim's module; None for any other name.

        :raises AbsentNameError: an import asks for a module that the shim does not have, or
            for a name that one of its modules does not have (``from apex.optimizers import X``).
        """
        root, _, inner = fullname.partition(".")
        library = self._libraries.get(root)
        if library is None:
            if self._extension is not None and root in ROOTS:
                return self._extension.find_spec(fullname, path)
            return None
        if self._is_real(fullname):
            around = PathFinder.find_spec(root) if fullname in self._parts else None
            locations = None if around is None else around.submodule_search_locations
            return PathFinder.find_spec(fullname, locations) if locations else None
        spec = PathFinder.find_spec(fullname, path) if inner else self._find_root(root)
        if spec is not None and spec.origin is not None:  # not an empty directory
            spec.loader = ShimLoader(fullname, spec.origin)
        else:
            spec = find_public(fullname, library.name)
        if (
            spec is None
            and inner
            and _is_imported(fullname.rpartition(".")[0])
            and importer(sys._getframe(1))[0]
        ):
            raise _absent(fullname, library)
        return spec

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Metadata of the shims, for :mod:`importlib.metadata`.

        A search in given directories, such as pip's, finds none: nothing is installed there.
        """
        if context is not None and "path" in vars(context):
            return
        speakers = {library.distribution: library for library in reversed(LIBRARIES.values())}
        asking = importer(sys._getframe(1))[1]
        root = "" if asking is None else str(asking.f_globals.get("__name__")).partition(".")[0]
        for library in dict.fromkeys(self._libraries.values()):
            if root and library.not_beside == root:
                continue  # it would look for the real one's compiled part
            if speakers.get(library.distribution, library) == library:
                found = ShimDistribution(library)
                if context is None or context.name is None or found.is_called(context.name):
                    yield found

    def _find_root(self, root: str) -> ModuleSpec | None:
        package = self._directory / root / "__init__.py"
        if package.is_file():
            directory = [str(package.parent)]
            return spec_from_file_location(root, package, submodule_search_locations=directory)
        file = self._directory / f"{root}.py"
        return spec_from_file_location(root, file) if file.is_file() else None

    def _is_real(self, name: str) -> bool:
        return any(f"{name}.".startswith(f"{part}.") for part in self._parts)

    def _is_ours(self, name: str) -> bool:
        if self._is_real(name):
            return False
        root = name.partition(".")[0]
        return root in self._libraries or (self._extension is not None and root in ROOTS)


def _is_imported(module: str) -> bool:
    """Not while it is being imported: the name may be defined further down."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return not getattr(spec, "_initializing", False)


def _absent(fullname: str, library: Library) -> AbsentNameError:
    parent, _, name = fullname.rpartition(".")
    module = sys.modules.get(parent)
    known = [one for one in dir(module) if one != name and one[:1] != "_"] if module else []
    near = difflib.get_close_matches(name, known, n=1)
    nearest = f"; the nearest name there is {near[0]!r}" if near else ""
    # Without `name`: importlib would then swallow it in favour of its own, shorter message.
    return AbsentNameError(
        f"accel_bridge's shim for {library.name} {library.version} has no {fullname}{nearest}\n"
        f"  evidence: {library.name} is not the real library here (`accel-bridge libraries`)\n"
        f"  next:     turn off the feature that needs it, or install the real "
        f"{library.distribution}; docs/libraries.md lists what is served"
    )
