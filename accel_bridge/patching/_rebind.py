"""Finding the places where an object stands under other names.

Found are the globals of every loaded module, and the class attributes (bare, or in a
``staticmethod``, ``classmethod`` or ``property``) of the classes in the target's own top-level
package. **Not found** are default arguments, closures, entries of dicts and lists (registries,
dispatch tables), attributes of instances, ``functools.partial`` objects, bound methods and base
classes of existing classes: who holds the original there keeps the original. Patch such places by a
patch of their own, or apply the patch before they are filled: with the engine active before the
target's module is imported, every holder gets the patched object.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from accel_bridge.patching._journal import own_namespace
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


def find_places(wanted: Iterable[object], package: str) -> list[Place]:
    """Every place where one of ``wanted`` stands, by identity.

    :param package: top-level package whose classes are searched as well.

    With torch and Megatron loaded that is some 4000 modules and 160 000 names, so namespaces are
    first tested as a whole and looked into only where something stands.
    """
    ids = frozenset(map(id, wanted))
    places: list[Place] = []
    seen: set[int] = set()
    for name, module in tuple(sys.modules.items()):
        if id(module) in seen or not issubclass(type(module), ModuleType):
            continue
        seen.add(id(module))
        namespace = own_namespace(module)
        values = tuple(namespace.values())
        if not ids.isdisjoint(map(id, values)):
            places += [Place(module, k, v) for k, v in tuple(namespace.items()) if id(v) in ids]
        if name == package or name.startswith(f"{package}."):
            for value in values:
                if isinstance(value, type) and id(value) not in seen:
                    places += _in_class(value, ids, package, seen)
    return places


def _in_class(cls: type, ids: frozenset[int], package: str, seen: set[int]) -> list[Place]:
    """Places in a class of ``package`` and the classes nested in it."""
    seen.add(id(cls))
    namespace = type.__getattribute__(cls, "__dict__")
    if str(namespace.get("__module__")).partition(".")[0] != package:
        return []
    places: list[Place] = []
    for key, raw in tuple(namespace.items()):
        if id(raw) in ids or (type(raw) in HOLDERS and id(unwrap(raw)) in ids):
            places.append(Place(cls, key, raw))
        if isinstance(raw, type) and id(raw) not in seen:
            places += _in_class(raw, ids, package, seen)
    return places
