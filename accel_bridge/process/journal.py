"""A journal of attribute changes that can be undone exactly."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

#: Stands for "the attribute was not in the owner's own namespace" (it was inherited or missing).
ABSENT: Final[Any] = type("Absent", (), {"__repr__": lambda self: "<absent>"})()


def own_namespace(owner: object) -> Any:
    """The owner's own ``__dict__``, read without waking lazy modules or descriptors."""
    return object.__getattribute__(owner, "__dict__")


def raw_attribute(owner: object, name: str) -> Any:
    """The value stored under ``name`` in the owner's own namespace, descriptors unbound."""
    if isinstance(owner, type):
        return type.__getattribute__(owner, "__dict__").get(name, ABSENT)
    return own_namespace(owner).get(name, ABSENT)


@dataclass(frozen=True, slots=True)
class Change:
    """One change: ``owner.name`` (or ``owner[name]`` for a mapping) held ``old`` before."""

    owner: Any
    name: Any
    old: Any
    new: Any
    is_item: bool


class Journal:
    """Sets attributes and remembers what stood there, descriptor for descriptor.

    An attribute that a class inherited is deleted by :meth:`undo`, not set to its parent's value;
    a ``staticmethod`` or ``property`` comes back as that object.
    """

    def __init__(self) -> None:
        self._changes: list[Change] = []

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes made so far, oldest first."""
        return tuple(self._changes)

    def set(self, owner: object, name: str, value: Any) -> None:
        """``owner.name = value``."""
        old = raw_attribute(owner, name)
        setattr(owner, name, value)
        self._changes.append(Change(owner, name, old, value, is_item=False))

    def set_item(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """``mapping[key] = value``."""
        old = mapping.get(key, ABSENT)
        mapping[key] = value
        self._changes.append(Change(mapping, key, old, value, is_item=True))

    def undo(self, *, unless: Callable[[Change], bool] | None = None) -> tuple[Change, ...]:
        """Put every old value back, newest change first.

        :param unless: tells of a change whether it must be left alone (somebody else has changed
            the same attribute since). Such changes stay in the journal.
        :returns: the changes left alone, oldest first.
        """
        left: list[Change] = []
        while self._changes:
            change = self._changes.pop()
            if unless is not None and unless(change):
                left.insert(0, change)
            else:
                _put_back(change)
        self._changes = left
        return tuple(left)

    def forget(self, overwritten: Callable[[Change], bool]) -> None:
        """Drop the changes for which ``overwritten`` holds, undoing nothing."""
        self._changes = [change for change in self._changes if not overwritten(change)]


def _put_back(change: Change) -> None:
    if change.is_item:
        if change.old is ABSENT:
            change.owner.pop(change.name, None)
        else:
            change.owner[change.name] = change.old
    elif change.old is ABSENT:
        delattr(change.owner, change.name)
    else:
        setattr(change.owner, change.name, change.old)
