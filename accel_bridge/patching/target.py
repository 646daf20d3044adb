"""Finding a patch's target, the other names under which it is held, and descriptors around
functions.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from accel_bridge.process.journal import ABSENT, own_namespace, raw_attribute

#: Descriptors that hold one function each.
HOLDERS = (staticmethod, classmethod, property, cached_property)


class Refusal(Exception):
    """A patch cannot be applied; the text is the reason, to follow "patch x: "."""


class TargetMissing(Refusal):
    """The target does not exist."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a target is, and what is there.

    :param owner: the module or class that has the attribute.
    :param name: the attribute.
    :param raw: what is stored there, descriptors unbound.
    :param inherited: ``raw`` belongs to a base of ``owner``, not to ``owner`` itself.
    """

    owner: ModuleType | type
    name: str
    raw: Any
    inherited: bool

    @property
    def original(self) -> Any:
        """What :class:`PatchContext` calls the original."""
        return unwrap(self.raw)

    @property
    def is_method(self) -> bool:
        """Whether a call passes an instance or class first."""
        if not isinstance(self.owner, type) or isinstance(self.raw, (staticmethod, type)):
            return False
        return isinstance(self.raw, HOLDERS) or hasattr(type(self.raw), "__get__")

    def name_after_it(self, new: Any) -> None:
        """Name a function or class after this place, so that pickle finds it here."""
        owner, new.__name__ = self.owner, self.name
        inside = isinstance(owner, type)
        new.__module__ = owner.__module__ if inside else owner.__name__
        new.__qualname__ = f"{owner.__qualname__}.{self.name}" if inside else self.name


def resolve(module: ModuleType, qualname: str) -> Target:
    """Find ``qualname`` in an executed module.

    :raises TargetMissing: naming the part that is missing.
    """
    *path, name = qualname.split(".")
    # A normal attribute access lets a lazily loaded module load, and a module with
    # ``__getattr__`` fill in the name. Only what is then in its namespace is patched.
    getattr(module, (path or [name])[0], None)
    owner: ModuleType | type = module
    for part in path:
        raw, _ = _lookup(owner, part)
        if not isinstance(raw, type):
            found = "does not exist" if raw is ABSENT else f"is {type(raw).__name__}, not a class"
            raise TargetMissing(f"{_name_of(owner)}.{part} {found}")
        owner = raw
    raw, inherited = _lookup(owner, name)
    if raw is ABSENT:
        raise TargetMissing(f"{_name_of(owner)} has no {name}")
    return Target(owner, name, raw, inherited)


def unwrap(raw: Any) -> Any:
    """The function in a descriptor; anything else as it is."""
    if isinstance(raw, (staticmethod, classmethod)):
        return raw.__func__
    if isinstance(raw, property):
        return raw.fget
    if isinstance(raw, cached_property):
        return raw.func
    return raw


def dress(like: Any, new: Any, *, owner: object, name: str) -> Any:
    """``new`` in a descriptor of the same type as ``like``, ready to stand at ``owner.name``."""
    if isinstance(like, (staticmethod, classmethod)):
        return type(like)(new)
    if isinstance(like, property):
        return like.getter(new)
    if isinstance(like, cached_property):
        fresh = type(like)(new)
        fresh.__set_name__(owner, name)  # type: ignore[arg-type]  # a cached_property has a class
        return fresh
    return new


def is_shared(value: object) -> bool:
    """Whether copies of ``value`` can be found by identity: true of functions and classes."""
    return isinstance(value, (FunctionType, type)) or (
        callable(value) and hasattr(value, "__qualname__")
    )


def describe(value: object) -> str:
    """``module.qualname`` of a function or class, or the type of anything else."""
    inner = unwrap(value)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"


def _lookup(owner: ModuleType | type, name: str) -> tuple[Any, bool]:
    """The raw value of ``owner.name`` and whether it was found in a base."""
    if not isinstance(owner, type):
        return raw_attribute(owner, name), False
    for base in type.__getattribute__(owner, "__mro__"):
        raw = raw_attribute(base, name)
        if raw is not ABSENT:
            return raw, base is not owner
    return ABSENT, False


def _name_of(owner: ModuleType | type) -> str:
    return f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__


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
