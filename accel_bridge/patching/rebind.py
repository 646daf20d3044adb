"""Finding the other names under which an object is held.

The search covers the globals of modules and the class attributes (bare, or in a ``staticmethod``,
``classmethod`` or ``property``) of the target's own top-level package; on request also the globals
of every other module. It does **not** cover default arguments, closures, entries of dicts and lists
(registries, dispatch tables), attributes of instances, ``functools.partial`` objects, bound methods
and base classes of existing classes: these keep the original. Give such a place a patch of its own,
or apply the patch before it is filled: if the engine is active before the target's module is
imported, every holder gets the patched object.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from types import ModuleType
from typing import Any

from accel_bridge.patching.target import HOLDERS, dress, unwrap
from accel_bridge.process.journal import own_namespace


@dataclass(frozen=True, slots=True)
class Place:
    """``owner.name`` holds ``raw``: the object looked for, or a descriptor around it."""

    owner: ModuleType | type
    name: str
    raw: Any

    def __str__(self) -> str:
        if isinstance(self.owner, type):
            return f"{self.owner.__module__}:{self.owner.__qualname__}.{self.name}"
        return f"{own_namespace(self.owner).get('__name__', '?')}:{self.name}"

    def dressed(self, new: Any) -> Any:
        """``new``, ready to be put here, in a descriptor like the one found."""
        return dress(self.raw, new, owner=self.owner, name=self.name)


def find_places(
    wanted: object,
    package: str,
    *,
    everywhere: bool = False,
    since: str | None = None,
    classes: bool = True,
) -> list[Place]:
    """Every place that holds ``wanted``, by identity.

    :param package: top-level package whose modules and classes are searched.
    :param everywhere: search the globals of all other modules too: with torch and Megatron loaded
        some 4000 modules and 160 000 names, about 30 ms.
    :param since: a module that was executed just now. Only it and modules loaded after it can
        hold what it has defined; ``sys.modules`` keeps them in that order.
    :param classes: search the package's classes too, which takes most of the time.

    Namespaces are tested as a whole, in C, and searched only after a hit; this also keeps other
    threads from changing them meanwhile.
    """
    places: list[Place] = []
    seen: set[int] = set()
    for name, module in _loaded(since):
        inside = name == package or name.startswith(f"{package}.")
        if not (inside or everywhere) or id(module) in seen:
            continue
        if not issubclass(type(module), ModuleType):
            continue
        seen.add(id(module))
        namespace = own_namespace(module)
        if any(map(is_, namespace.values(), repeat(wanted))):
            items = tuple(namespace.items())
            places += [Place(module, key, value) for key, value in items if value is wanted]
        if inside and classes:
            for value in tuple(namespace.values()):
                if isinstance(value, type) and id(value) not in seen:
                    places += _in_class(value, wanted, package, seen)
    return places


def _loaded(since: str | None) -> list[tuple[str, ModuleType]]:
    """The loaded modules; with ``since`` only that module and those after it."""
    modules = list(sys.modules.items())
    if since in sys.modules:
        first = next(place for place, (name, _) in enumerate(modules) if name == since)
        return modules[first:]
    return modules


def _in_class(cls: type, wanted: object, package: str, seen: set[int]) -> list[Place]:
    """Places in a class of ``package`` and the classes nested in it."""
    seen.add(id(cls))
    namespace = type.__getattribute__(cls, "__dict__")
    if str(namespace.get("__module__")).partition(".")[0] != package:
        return []
    places: list[Place] = []
    for key, raw in tuple(namespace.items()):
        if raw is wanted or (type(raw) in HOLDERS and unwrap(raw) is wanted):
            places.append(Place(cls, key, raw))
        if isinstance(raw, type) and id(raw) not in seen:
            places += _in_class(raw, wanted, package, seen)
    return places
