"""Which libraries are real, which have a shim, and which are absent."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

from accel_bridge.libraries._library import LIBRARIES, Library
from accel_bridge.process.environment import LibraryChoice


class Origin(Enum):
    """What an import of a library finds."""

    REAL = "real"
    SHIM = "shim"
    #: The library's own Python, over accel_bridge's extension instead of its compiled part.
    COMPLETED = "completed"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Resolution:
    """The decision for one library.

    :param version: the real version, the one that the shim claims, or None.
    :param why: one clause.
    :param warning: a line for the user when something is wrong.
    """

    library: Library
    origin: Origin
    version: str | None
    why: str
    warning: str | None = None


def decide(
    choice: LibraryChoice,
    hidden: Collection[str],
    title: str,
    adaptor: str | None = None,
    libraries: Iterable[Library] = tuple(LIBRARIES.values()),
    find: Callable[[str], ModuleSpec | None] = importlib.util.find_spec,
) -> list[Resolution]:
    """The resolution of every library. Nothing is imported.

    :param choice: value of ``ACCEL_BRIDGE_LIBRARIES``.
    :param hidden: top-level modules that cannot work on the selected backend.
    :param title: that backend's name for people.
    :param adaptor: name of the adaptor that took the device over, and brings shims of its own.
    :param find: where a module would come from.
    """
    resolutions = [
        _resolution(library, choice, hidden, title, adaptor, find) for library in libraries
    ]
    real = {one.library.name for one in resolutions if one.origin is Origin.REAL}
    return [_left_out(one, real, choice) for one in resolutions]


def _left_out(resolution: Resolution, real: Collection[str], choice: LibraryChoice) -> Resolution:
    """The resolution; nothing instead of a shim whose insides a real library would look for."""
    library = resolution.library
    beside = library.not_beside in real and not choice.names(library.name)
    if resolution.origin is not Origin.SHIM or not beside:
        return resolution
    why = f"{resolution.why}; the real {library.not_beside} would look for its compiled part"
    return Resolution(library, Origin.ABSENT, None, why)


def _resolution(
    library: Library,
    choice: LibraryChoice,
    hidden: Collection[str],
    title: str,
    adaptor: str | None,
    find: Callable[[str], ModuleSpec | None],
) -> Resolution:
    name = library.name
    refused = f"{adaptor} has taken over" if adaptor else choice.excluded(name)
    asked_for = choice.names(name) and not refused

    def real(why: str, warning: str | None = None) -> Resolution:
        return Resolution(library, Origin.REAL, _version(library), why, warning)

    def shim(why: str, warning: str | None = None) -> Resolution:
        """A shim, or the library's own Python over the extension, where one is allowed."""
        if refused:
            return Resolution(library, Origin.ABSENT, None, f"{why}; {refused}")
        if library.completed and (_find(name, find) is None or _version(library) is None):
            why = f"{why}: `pip install {name}` brings its Python"
            return Resolution(library, Origin.ABSENT, None, why)
        if library.completed:
            return Resolution(library, Origin.COMPLETED, _version(library), why, warning)
        return Resolution(library, Origin.SHIM, library.version, why, warning)

    loaded = [root for root in library.roots if root in sys.modules]
    if loaded and all(sys.modules[root] is None for root in loaded):
        return Resolution(
            library, Origin.ABSENT, None, f"sys.modules forbids to import {loaded[0]}"
        )
    if loaded:
        early = "it was imported before accel_bridge"
        warning = f"{name}: ACCEL_BRIDGE_LIBRARIES asks for the shim, but {early}; it stays"
        return real(early, warning if asked_for else None)
    spec = _find(name, find)
    if spec is None:
        return shim("it is not installed")
    if asked_for:
        return shim("ACCEL_BRIDGE_LIBRARIES asks for it; the real one is installed")
    if name in hidden:
        return shim(f"the real one cannot work on {title}")
    if not _is_whole(library, spec):
        if library.completed and _version(library) is None:
            return real("another project's of the same name is installed")
        if library.completed and not any(map(installed_version, library.extensions)):
            return shim("it is installed without its compiled part")
        why = "the real one is broken: its compiled part is missing"
        if refused:
            return real(why)
        return shim(
            why,
            f"{name} is installed without its compiled part ({library.compiled[-1]}); the shim "
            f"serves it. `pip install --force-reinstall {library.distribution}` repairs it",
        )
    return real("it is installed")


def _find(root: str, find: Callable[[str], ModuleSpec | None]) -> ModuleSpec | None:
    """Where the module ``root``, which is not imported, would come from."""
    spec = find(root)
    # A directory without __init__.py is no library: what an uninstalled one left, or a user's.
    return None if spec is None or spec.loader is None or spec.origin is None else spec


def _is_whole(library: Library, spec: ModuleSpec) -> bool:
    """Whether a compiled part is there, if one is needed."""
    if not library.compiled:
        return True
    directory = Path(str(spec.origin)).parent
    if spec.submodule_search_locations is not None:
        directory = directory.parent
    return any(any(directory.glob(pattern)) for pattern in library.compiled)


def _version(library: Library) -> str | None:
    return installed_version(library.distribution)


def installed_version(distribution: str) -> str | None:
    """What the metadata of a distribution says; None where it is not installed."""
    try:
        return version(distribution)
    except Exception:  # it has no metadata, or they are damaged
        return None
