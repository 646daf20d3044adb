"""Finding a patch's target, and descriptors around functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

from accel_bridge.process.journal import ABSENT, raw_attribute

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
