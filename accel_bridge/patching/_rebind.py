"""Finding the places where an object stands under other names.

Found are the globals of modules and the class attributes (bare, or in a ``staticmethod``,
``classmethod`` or ``property``) of the target's own top-level package; on request also the globals
of every other module. **Not found** are default arguments, closures, entries of dicts and lists
(registries, dispatch tables), attributes of instances, ``functools.partial`` objects, bound methods
and base classes of existing classes: who holds the original there keeps the original. Patch such
places by a patch of their own, or apply the patch before they are filled: with the engine active
before the target's module is imported, every holder gets the patched object.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from types import ModuleType
from typing import Any

from accel_bridge._journal import own_namespace
from accel_bridge.patching._target import HOLDERS, unwrap


@dataclass(frozen=True, slots=True)
class Place:
    """``raw`` stands at ``owner.name``; it is the object looked for, or a descriptor around it."""

    owner: ModuleType | type
    name: str
    raw: Any

    def __str__(self) -> str:
        if isinstance(self.owner, type):
            return f"{self.owner.__module__}:{self.owner.__qualname__}.{self.name}"
        return f"{own_namespace(self.owner).get('__name__', '?')}:{self.name}"

    def has(self, value: object) -> bool:
        """Whether ``value`` stands here, bare or in a descriptor."""
        return self.raw is value or unwrap(self.raw) is value


def find_places(wanted: Sequence[object], package: str, *, everywhere: bool = False) -> list[Place]:
    """Every place where one of ``wanted`` stands, by identity.

    :param package: top-level package whose modules and classes are searched.
    :param everywhere: search the globals of all other modules too: with torch and Megatron loaded
        some 4000 modules and 160 000 names, about 30 ms for one wanted object.

    Namespaces are tested as a whole, in C, and looked into only where something stands; that also
    keeps other threads from changing them meanwhile.
    """
    places: list[Place] = []
    seen: set[int] = set()
    for name, module in tuple(sys.modules.items()):
        inside = name == package or name.startswith(f"{package}.")
        if not (inside or everywhere) or id(module) in seen:
            continue
        if not issubclass(type(module), ModuleType):
            continue
        seen.add(id(module))
        namespace = own_namespace(module)
        if any(any(map(is_, namespace.values(), repeat(one))) for one in wanted):
            items = tuple(namespace.items())
            places += [Place(module, k, v) for k, v in items if any(v is one for one in wanted)]
        if inside:
            for value in tuple(namespace.values()):
                if isinstance(value, type) and id(value) not in seen:
                    places += _in_class(value, wanted, package, seen)
    return places


def _in_class(cls: type, wanted: Sequence[object], package: str, seen: set[int]) -> list[Place]:
    """Places in a class of ``package`` and the classes nested in it."""
    seen.add(id(cls))
    namespace = type.__getattribute__(cls, "__dict__")
    if str(namespace.get("__module__")).partition(".")[0] != package:
        return []
    places: list[Place] = []
    for key, raw in tuple(namespace.items()):
        inner = unwrap(raw) if type(raw) in HOLDERS else raw
        if any(raw is one or inner is one for one in wanted):
            places.append(Place(cls, key, raw))
        if isinstance(raw, type) and id(raw) not in seen:
            places += _in_class(raw, wanted, package, seen)
    return places
