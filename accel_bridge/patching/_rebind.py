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
from collections.abc import Iterator, Mapping
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


def find_places(wanted: object, package: str, *, but: str | None = None) -> list[Place]:
    """Every place where ``wanted`` stands, by identity.

    :param package: top-level package whose classes are searched as well.
    :param but: name of a module whose globals are left out.
    """
    places: list[Place] = []
    seen: set[int] = set()
    for name, namespace, module in _modules():
        inside = name == package or name.startswith(f"{package}.")
        for key, value in tuple(namespace.items()):
            if value is wanted and name != but and isinstance(key, str):
                places.append(Place(module, key, value))
            if inside and isinstance(value, type):
                places += _in_class(value, wanted, package, seen)
    return places


def _modules() -> Iterator[tuple[str, Mapping[str, Any], ModuleType]]:
    """Name, namespace and module of what is loaded; lazy modules are not woken."""
    known: set[int] = set()
    for name, module in tuple(sys.modules.items()):
        if issubclass(type(module), ModuleType) and id(module) not in known:
            known.add(id(module))
            yield name, own_namespace(module), module


def _in_class(cls: type, wanted: object, package: str, seen: set[int]) -> Iterator[Place]:
    """Places in a class of ``package`` and the classes nested in it."""
    if id(cls) in seen or str(cls.__module__).partition(".")[0] != package:
        return
    seen.add(id(cls))
    for key, raw in tuple(type.__getattribute__(cls, "__dict__").items()):
        if raw is wanted or (isinstance(raw, HOLDERS) and unwrap(raw) is wanted):
            yield Place(cls, key, raw)
        if isinstance(raw, type):
            yield from _in_class(raw, wanted, package, seen)
