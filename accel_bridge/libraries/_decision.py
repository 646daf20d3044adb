"""Which libraries are real, which have a stand-in, and which are absent."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path

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
) -> list[Standing]:
    """The standing of every library. Nothing is imported.

    :param choice: value of ``ACCEL_BRIDGE_LIBRARIES``.
    :param hidden: top-level modules that cannot work on the selected backend.
    :param title: that backend's name for people.
    :param adaptor: name of the adaptor that took the device over, and brings stand-ins of its own.
    :param find: where a module would come from.
    """
    standings = [_standing(library, choice, hidden, title, adaptor, find) for library in libraries]
    real = {one.library.name for one in standings if one.origin is Origin.REAL}
    return [_left_out(one, real, choice) for one in standings]


def _left_out(standing: Standing, real: Collection[str], choice: LibraryChoice) -> Standing:
    """The standing; nothing instead of a stand-in whose insides a real library would look for."""
    library = standing.library
    beside = library.not_beside in real and not choice.names(library.name)
    if standing.origin is not Origin.STAND_IN or not beside:
        return standing
    why = f"{standing.why}; the real {library.not_beside} would look for its compiled part"
    return Standing(library, Origin.ABSENT, None, why)


def _standing(
    library: Library,
    choice: LibraryChoice,
    hidden: Collection[str],
    title: str,
    adaptor: str | None,
    find: Callable[[str], ModuleSpec | None],
) -> Standing:
    name = library.name
    refused = f"{adaptor} has taken over" if adaptor else choice.excluded(name)
    asked_for = choice.names(name) and not refused

    def real(why: str, warning: str | None = None) -> Standing:
        return Standing(library, Origin.REAL, _version(library), why, warning)

    def stand_in(why: str, warning: str | None = None) -> Standing:
        """A stand-in, where one is allowed."""
        if refused:
            return Standing(library, Origin.ABSENT, None, f"{why}; {refused}")
        return Standing(library, Origin.STAND_IN, library.version, why, warning)

    loaded = [root for root in library.roots if root in sys.modules]
    if loaded and all(sys.modules[root] is None for root in loaded):
        return Standing(library, Origin.ABSENT, None, f"sys.modules forbids to import {loaded[0]}")
    if loaded:
        early = "it was imported before accel_bridge"
        warning = f"{name}: ACCEL_BRIDGE_LIBRARIES asks for the stand-in, but {early}; it stays"
        return real(early, warning if asked_for else None)
    spec = _find(name, find)
    if spec is None:
        return stand_in("it is not installed")
    if asked_for:
        return stand_in("ACCEL_BRIDGE_LIBRARIES asks for it; the real one is installed")
    if name in hidden:
        return stand_in(f"the real one cannot work on {title}")
    if not _is_whole(library, spec):
        why = "the real one is broken: its compiled part is missing"
        if refused:
            return real(why)
        return stand_in(
            why,
            f"{name} is installed without its compiled part ({library.compiled[-1]}); the stand-in "
            f"serves it. `pip install --force-reinstall {library.distribution}` repairs it",
        )
    return real("it is installed")


def _find(root: str, find: Callable[[str], ModuleSpec | None]) -> ModuleSpec | None:
    """Where the module ``root``, which is not imported, would come from."""
    spec = find(root)
    # A folder without __init__.py is no library: what an uninstalled one left, or a working folder.
    return None if spec is None or spec.loader is None or spec.origin is None else spec


def _is_whole(library: Library, spec: ModuleSpec) -> bool:
    """Whether a compiled part is there, if one is needed."""
    if not library.compiled:
        return True
    folder = Path(str(spec.origin)).parent
    if spec.submodule_search_locations is not None:
        folder = folder.parent
    return any(any(folder.glob(pattern)) for pattern in library.compiled)


def _version(library: Library) -> str | None:
    try:
        return version(library.distribution)
    except Exception:  # it has no metadata, or they are damaged
        return None
