"""Which libraries are real, which have a stand-in, and which are absent."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version

from accel_bridge._environment import LibraryChoice
from accel_bridge.libraries._library import LIBRARIES, Library


class Origin(Enum):
    """What an import of a library finds."""

    REAL = "real"
    STAND_IN = "stand-in"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Standing:
    """The decision for one library.

    :param version: the real version, the one that the stand-in claims, or None.
    :param why: one clause.
    :param warning: a line for the user when something is wrong with the real library.
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
    libraries: Iterable[Library] = tuple(LIBRARIES.values()),
) -> list[Standing]:
    """The standing of every library. Nothing is imported.

    :param choice: value of ``ACCEL_BRIDGE_LIBRARIES``.
    :param hidden: top-level modules that cannot work on the selected backend.
    :param title: that backend's name for people.
    """
    return [_standing(library, choice, hidden, title) for library in libraries]


def _standing(
    library: Library, choice: LibraryChoice, hidden: Collection[str], title: str
) -> Standing:
    excluded = choice.excluded(library.name)
    stand_in = Standing(library, Origin.STAND_IN, library.version, "")
    loaded = sys.modules.get(library.name)
    if loaded is not None:
        return Standing(
            library, Origin.REAL, _version(library), "it was imported before accel_bridge"
        )
    real = _real(library.name)
    if real is None:
        why = excluded or "it is not installed"
        return Standing(library, Origin.ABSENT, None, why) if excluded else _because(stand_in, why)
    if choice.names(library.name):
        return _because(stand_in, "ACCEL_BRIDGE_LIBRARIES asks for it; the real one is installed")
    if library.name in hidden:
        why = f"the real one cannot work on {title}"
        if excluded:
            return Standing(library, Origin.ABSENT, None, f"{why}; {excluded}")
        return _because(stand_in, why)
    missing = [name for name in library.compiled if _real(name) is None]
    if missing:
        why = f"the real one is broken: its extension {missing[0]} is missing"
        if excluded:
            return Standing(library, Origin.REAL, _version(library), why)
        next_step = f"pip install --force-reinstall {library.distribution}"
        return Standing(
            library,
            Origin.STAND_IN,
            library.version,
            why,
            f"{library.name} is installed but broken: {missing[0]} is missing; the stand-in serves "
            f"it. Repair it with `{next_step}`, or remove it",
        )
    return Standing(library, Origin.REAL, _version(library), "it is installed")


def _because(standing: Standing, why: str) -> Standing:
    return Standing(standing.library, standing.origin, standing.version, why)


def _real(root: str) -> ModuleSpec | None:
    """Where the real library is, whatever finders stand before the path's own."""
    return PathFinder.find_spec(root)


def _version(library: Library) -> str | None:
    try:
        return version(library.distribution)
    except PackageNotFoundError:
        return None
