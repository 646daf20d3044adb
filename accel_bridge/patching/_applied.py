"""One patch in place: installing it, noticing its first call, taking it out again."""

from __future__ import annotations

import sys
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any

from accel_bridge._journal import ABSENT, Change, Journal, raw_attribute
from accel_bridge.patching._rebind import Place, find_places
from accel_bridge.patching._record import Kind, Patch
from accel_bridge.patching._target import (
    HOLDERS,
    Target,
    describe,
    dress,
    is_shared,
    unwrap,
)
from accel_bridge.patching._tripwire import Reach, arm_class, rename, stand_in, tripwire


class Applied:
    """A patch that stands in one execution of its target's module.

    :param upstream: the upstream project's own object at the target, below any earlier patch.
    :param new: what ``make`` returned.
    :param lock: held while attributes are changed, never while somebody's function runs.

    Nothing is changed before :meth:`install`.
    """

    def __init__(
        self,
        patch: Patch,
        module: ModuleType,
        target: Target,
        *,
        upstream: Any,
        new: Any,
        lock: RLock,
    ) -> None:
        self.patch = patch
        self.module = module
        self.target = target
        self.upstream = upstream
        self.reach = Reach()
        self.aliases: tuple[str, ...] = ()
        self._lock = lock
        self._journal = Journal()
        self._package = patch.module.partition(".")[0]
        self._armed: Journal | None = None

        #: Descriptor that the new object stands in.
        self._like = new if isinstance(new, HOLDERS) else target.raw
        self.real: Any = new if patch.kind is Kind.ATTRIBUTE else unwrap(new)
        #: The new object can be told from others by identity; plain data cannot.
        self._traceable = patch.kind is not Kind.ATTRIBUTE or is_shared(new)
        self._found = self._search()
        #: The new object is the package's own: who holds it there need not have it from us.
        self._native = self._is_native()
        #: Nobody else holds the object, so every holder found later took it from the target.
        self._private = self._traceable and self._make_private()
        #: What callers meet before the first call; the real object where there is no wire.
        self.wire: Any = self.real
        if patch.kind is not Kind.ATTRIBUTE and not isinstance(self.real, type):
            self.wire = tripwire(self.real, self.reach, self._trip)
            rename(self.wire, *self._location())

    @property
    def counted(self) -> bool:
        """Whether a first call can be noticed; asked after :meth:`install`."""
        return self.wire is not self.real or self._armed is not None

    def holds(self, value: object) -> bool:
        """Whether ``value``, as stored in a namespace, is ours."""
        ours = (self.real, self.wire)
        return any(value is mine or unwrap(value) is mine for mine in ours)

    def made(self, value: object) -> bool:
        """Whether ``value`` can only come from this patch."""
        inner = unwrap(value)
        if inner is self.wire and self.wire is not self.real:
            return True
        return self._private and inner is self.real

    def stands_at(self, target: Target) -> bool:
        """Whether this very place was changed and still is."""
        return any(
            change.owner is target.owner and change.name == target.name
            for change in self._journal.changes
        )

    def install(self) -> None:
        """Put the new object at the target and wherever else the original stands."""
        with self._lock:
            try:
                self._install()
            except BaseException:
                self._journal.undo()
                raise
            self._found = []

    def _install(self) -> None:
        target = self.target
        if self.patch.kind is Kind.ATTRIBUTE:
            self._journal.set(target.owner, target.name, self.real)
        else:
            self._put(target.owner, target.name, self._like)
        aliases = self._aliases()
        for place in aliases:
            self._put(place.owner, place.name, place.raw)
        self.aliases = tuple(str(place) for place in aliases)
        if self.patch.kind is not Kind.ATTRIBUTE and isinstance(self.real, type):
            self._armed = arm_class(self.real, self.reach, self._trip)

    def _search(self) -> list[Place]:
        """Places where the original or the new object stands before anything is changed.

        Plain data is not searched for: the same small integer stands in many places.
        """
        values = (self.target.original, self.real)
        if self.patch.kind is Kind.ATTRIBUTE:
            values = tuple(value for value in values if is_shared(value))
        return find_places(values, self._package)

    def _aliases(self) -> list[Place]:
        """The other places where the original stands."""
        target = self.target
        if target.inherited:
            return []
        # The module that builds the patch keeps its own view of the original.
        maker = sys.modules.get(str(getattr(self.patch.make, "__module__", None)))
        return [
            place
            for place in self._found
            if place.has(target.original)
            and place.owner is not maker
            and not (place.owner is target.owner and place.name == target.name)
        ]

    def _put(self, owner: ModuleType | type, name: str, like: Any) -> None:
        self._journal.set(owner, name, dress(like, unwrap(self.wire), owner=owner, name=name))

    def _trip(self) -> None:
        """First call: let the real object stand wherever the wire stands.

        While another thread changes something, or in a process forked meanwhile, the call does
        not wait: the next one tries again.
        """
        self.reach.called = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.reach.armed:
                self.reach.armed = False
                self._step_aside()
        finally:
            self._lock.release()

    def _step_aside(self) -> None:
        """Take the trip-wire out."""
        if self._armed is not None:
            self._disarm()
        elif self._private:
            for place in self._places_of(self.wire):
                self._replace(place, self.real)

    def _places_of(self, *wanted: object) -> list[Place]:
        """Places we know of and places found, where one of ``wanted`` stands now."""
        known = [
            Place(change.owner, change.name, raw_attribute(change.owner, change.name))
            for change in self._journal.changes
        ]
        standing = [place for place in known if any(place.has(one) for one in wanted)]
        taken = {(id(place.owner), place.name) for place in standing}
        found = find_places(wanted, self._package)
        return standing + [place for place in found if (id(place.owner), place.name) not in taken]

    def _replace(self, place: Place, new: Any) -> None:
        dressed = dress(place.raw, new, owner=place.owner, name=place.name)
        setattr(place.owner, place.name, dressed)

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.undo()
            self._armed = None

    def forget_overwritten(self) -> None:
        """The module was executed again: what it overwrote is no longer ours to undo."""
        with self._lock:
            self._journal.forget(lambda change: not self._holds_now(change))

    def undo(self) -> tuple[str, ...]:
        """Put everything back, places that copied our object since included.

        :returns: who stands where somebody else replaced our object; those places are left alone.
        """
        with self._lock:
            self.reach.armed = False
            self._disarm()
            foreign = self._journal.undo(unless=lambda change: not self._holds_now(change))
            self._restore_copies()
        return tuple(
            f"{Place(change.owner, change.name, None)} is now"
            f" {describe(raw_attribute(change.owner, change.name))}"
            for change in foreign
        )

    @property
    def left(self) -> bool:
        """Whether an undo left something in place."""
        return bool(self._journal.changes)

    def _holds_now(self, change: Change) -> bool:
        return self.holds(raw_attribute(change.owner, change.name))

    def _restore_copies(self) -> None:
        """Give the original to those who copied our object while it stood at the target."""
        if not self._traceable:
            return
        original = self.target.original
        for place in self._places_of(self.wire, self.real):
            wire_only = self.wire is not self.real and place.has(self.wire)
            copied = self._private or (self._in_package(place) and not self._native)
            if wire_only or copied:
                self._replace(place, original)

    def _is_native(self) -> bool:
        """Whether the new object comes from the target's package, or stood there already."""
        home = str(getattr(self.real, "__module__", "")).partition(".")[0]
        return home == self._package or any(
            place.has(self.real) and self._in_package(place) for place in self._found
        )

    def _in_package(self, place: Place) -> bool:
        """Whether the place belongs to the target's own top-level package."""
        name = str(place).partition(":")[0]
        return name.partition(".")[0] == self._package

    def _make_private(self) -> bool:
        """Make sure that only the target's holders will hold the real object, where possible.

        A plain function that stands in some module is copied; a class or other callable that does
        is shared and stays so: its wire is then never replaced, and after the undo only holders in
        the target's own package get the original back, and not even those when the object is the
        package's own.
        """
        public = _stands_by_its_name(self.real) or any(p.has(self.real) for p in self._found)
        if self.patch.kind is Kind.ATTRIBUTE:
            return not public
        if isinstance(self.real, FunctionType):
            if public:
                self.real = stand_in(self.real)
            rename(self.real, *self._location())
            return True
        if not public and isinstance(self.real, type) and "<locals>" in self.real.__qualname__:
            rename(self.real, *self._location())
        return not public

    def _location(self) -> tuple[str, str]:
        """Module and qualname of the target."""
        owner = self.target.owner
        if isinstance(owner, type):
            return owner.__module__, f"{owner.__qualname__}.{self.target.name}"
        return self.module.__name__, self.target.name


def _stands_by_its_name(value: Any) -> bool:
    """Whether ``value`` is what its own module and qualified name lead to."""
    found: Any = sys.modules.get(str(getattr(value, "__module__", None)), ABSENT)
    for part in str(getattr(value, "__qualname__", "")).split("."):
        if not isinstance(found, (type, ModuleType)):
            return False
        found = unwrap(raw_attribute(found, part))
    return found is value
