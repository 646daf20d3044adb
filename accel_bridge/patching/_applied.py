"""One patch in place: installing it, taking it out again."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from accel_bridge._journal import Change, Journal, raw_attribute
from accel_bridge.patching._counter import Reach, counted, counted_class, rename
from accel_bridge.patching._rebind import Place, find_places
from accel_bridge.patching._record import Kind, Patch
from accel_bridge.patching._target import HOLDERS, Target, describe, dress, is_shared, unwrap


class Applied:
    """A patch applied to one execution of its target's module.

    :param upstream: the upstream project's own object at the target, below any earlier patch.
    :param new: what ``make`` returned.
    :param everywhere: holders are searched in all modules, not only in the target's package.

    Nothing is changed before :meth:`install`. The engine's lock is held by the caller.
    """

    def __init__(
        self,
        patch: Patch,
        module: ModuleType,
        target: Target,
        *,
        upstream: Any,
        new: Any,
        everywhere: bool,
    ) -> None:
        self.patch = patch
        self.module = module
        self.target = target
        self.upstream = upstream
        self.aliases: tuple[str, ...] = ()
        self._everywhere = everywhere
        self._journal = Journal()
        as_it_is = isinstance(new, HOLDERS) or patch.kind is Kind.ATTRIBUTE
        self._like = new if as_it_is else target.raw
        self.reach = Reach(unwrap(new))
        #: What is now at the target; anyone who holds this very object got it from us.
        self.stands, self.counted = self._counting(new)

    def _counting(self, new: Any) -> tuple[Any, bool]:
        """The object for the target, and whether its calls are counted."""
        if self.patch.kind is Kind.ATTRIBUTE:
            return unwrap(new), False
        inner = unwrap(new)
        if not isinstance(inner, type):
            stands: Any = counted(inner, self.reach)
        elif (stands := counted_class(inner, self.reach)) is None:
            return inner, False
        rename(stands, *self._location())
        return stands, True

    def holds(self, value: object) -> bool:
        """Whether ``value``, as stored in a namespace, is ours."""
        return value is self.stands or unwrap(value) is self.stands

    def stands_at(self, target: Target) -> bool:
        """Whether this exact place was changed."""
        return any(c.owner is target.owner and c.name == target.name for c in self._journal.changes)

    def install(self, *, fresh: bool) -> None:
        """Put the new object at the target and wherever else the original is.

        :param fresh: the target's module was executed just now.
        """
        original = self.target.original
        defined_here = getattr(original, "__module__", None) == self.patch.module
        found = self._find(original, since=self.patch.module if fresh and defined_here else None)
        # The package's own object under another name: its existing holders keep it.
        home = str(getattr(self.stands, "__module__", "")).partition(".")[0]
        self._unique = self.counted or not (
            home == self._package or self._find(self.stands, classes=False)
        )
        aliases = [place for place in found if self._is_alias(place)]
        try:
            self._put(Place(self.target.owner, self.target.name, self._like))
            for place in aliases:
                self._put(place)
        except BaseException:
            self._journal.undo()
            raise
        self.aliases = tuple(str(place) for place in aliases)

    def _is_alias(self, place: Place) -> bool:
        """Whether this place holds the original too and must be changed."""
        target = self.target
        # The module that builds the patch keeps its own view of the original.
        maker = sys.modules.get(str(getattr(self.patch.make, "__module__", None)))
        at_target = place.owner is target.owner and place.name == target.name
        wanted = place.has(target.original) and not target.inherited
        return wanted and not at_target and place.owner is not maker

    def _put(self, place: Place) -> None:
        self._journal.set(place.owner, place.name, _dressed(place, self.stands))

    def forget_overwritten(self) -> None:
        """The module was executed again: what it overwrote is no longer ours to undo."""
        self._journal.forget(lambda change: not self._holds_now(change))

    def undo(self) -> tuple[str, ...]:
        """Put everything back, including in places that have copied our object since.

        :returns: a line for each place where somebody else replaced our object. Their object stays;
            if it calls our function, the call now reaches the original.
        """
        foreign = self._journal.undo(unless=lambda change: not self._holds_now(change))
        if self._unique:
            for place in self._find(self.stands):
                setattr(place.owner, place.name, _dressed(place, self.target.original))
        self.reach.function = self.target.original
        return tuple(
            f"{Place(change.owner, change.name, None)} is now"
            f" {describe(raw_attribute(change.owner, change.name))}"
            for change in foreign
        )

    def _holds_now(self, change: Change) -> bool:
        return self.holds(raw_attribute(change.owner, change.name))

    @property
    def _package(self) -> str:
        return self.patch.module.partition(".")[0]

    def _find(self, wanted: Any, *, since: str | None = None, classes: bool = True) -> list[Place]:
        """Places that hold an object; none for plain data, which has no identity of its own."""
        if not is_shared(wanted):
            return []
        package, everywhere = self._package, self._everywhere
        return find_places(wanted, package, everywhere=everywhere, since=since, classes=classes)

    def _location(self) -> tuple[str, str]:
        """Module and qualname of the target."""
        owner = self.target.owner
        if isinstance(owner, type):
            return owner.__module__, f"{owner.__qualname__}.{self.target.name}"
        return self.module.__name__, self.target.name


def _dressed(place: Place, new: Any) -> Any:
    return dress(place.raw, new, owner=place.owner, name=place.name)
