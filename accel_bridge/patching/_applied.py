"""One patch in place: installing it, taking it out again."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from types import ModuleType, new_class
from typing import Any

from accel_bridge.patching._record import Kind, Patch
from accel_bridge.patching.target import (
    HOLDERS,
    Place,
    Target,
    describe,
    find_places,
    is_shared,
    unwrap,
)
from accel_bridge.patching.verify import constructor
from accel_bridge.process.journal import Change, Journal, raw_attribute

# Counting: one small, permanent wrapper for each patched callable.


class Reach:
    """Where a wrapper leads and whether it was called, in attributes that torch.compile can write.

    :param function: what the wrapper calls: the replacement, and the original after the undo.
        Holders that no search finds (default arguments, tables) then reach the original too.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.called = False


def counted(new: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    """A function that looks like ``new``, notes that it was called, and calls ``reach.function``.

    The result is passed through unchanged: coroutines and generators stay what they are.
    """

    @functools.wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        reach.called = True
        # Without keywords a call costs a third less.
        return reach.function(*args, **kwargs) if kwargs else reach.function(*args)

    return call


def counted_class(new: type, reach: Reach) -> type | None:
    """A subclass of ``new`` that notes its instantiation; None if ``new`` cannot be subclassed."""
    reach.function = constructor(new) or object.__init__
    name = "__new__" if reach.function is new.__new__ else "__init__"
    body = {"__slots__": (), "__doc__": new.__doc__, name: counted(reach.function, reach)}
    with contextlib.suppress(TypeError):
        return new_class(new.__name__, (new,), exec_body=lambda namespace: namespace.update(body))
    return None


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
        is_value = patch.kind is Kind.ATTRIBUTE
        self._like = new if is_value or isinstance(new, HOLDERS) else target.raw
        inner = unwrap(new)
        self.reach = Reach(inner)
        count = counted_class if isinstance(inner, type) else counted
        wrapper = None if is_value else count(inner, self.reach)
        self.counted = wrapper is not None
        #: What is now at the target; anyone who holds this very object got it from us.
        self.stands: Any = wrapper if self.counted else inner
        if self.counted:
            target.name_after_it(wrapper)

    def holds(self, value: object) -> bool:
        """Whether ``value``, as stored in a namespace, is ours."""
        return value is self.stands or unwrap(value) is self.stands

    def stands_at(self, place: Target | Place) -> bool:
        """Whether this exact place was changed."""
        return any(c.owner is place.owner and c.name == place.name for c in self._journal.changes)

    def install(self, *, fresh: bool) -> None:
        """Put the new object at the target and wherever else the original is.

        :param fresh: the target's module was executed just now.
        """
        target, module = self.target, self.patch.module
        defined_here = getattr(target.original, "__module__", None) == module
        found = self._find(target.original, since=module if fresh and defined_here else None)
        # The package's own object under another name: its existing holders keep it.
        home = str(getattr(self.stands, "__module__", "")).partition(".")[0]
        self._unique = self.counted or not (
            home == self._package or self._find(self.stands, classes=False)
        )
        # The module that builds the patch keeps its own view of the original.
        maker = sys.modules.get(str(getattr(self.patch.make, "__module__", None)))
        try:
            self._put(Place(target.owner, target.name, self._like))
            others = [p for p in found if p.owner is not maker and not self.stands_at(p)]
            for place in [] if target.inherited else others:
                self._put(place)
                self.aliases += (str(place),)
        except BaseException:
            self._journal.undo()
            raise

    def _put(self, place: Place) -> None:
        self._journal.set(place.owner, place.name, place.dressed(self.stands))

    def forget_overwritten(self) -> None:
        """The module was executed again: what it overwrote is no longer ours to undo."""
        self._journal.forget(self._is_foreign)

    def undo(self) -> tuple[str, ...]:
        """Put everything back, including in places that have copied our object since.

        :returns: a line for each place where somebody else replaced our object. Their object stays;
            if it calls our function, the call now reaches the original.
        """
        foreign = self._journal.undo(unless=self._is_foreign)
        for place in self._find(self.stands) if self._unique else ():
            setattr(place.owner, place.name, place.dressed(self.target.original))
        if not isinstance(self.stands, type):
            self.reach.function = self.target.original
        return tuple(
            f"{Place(change.owner, change.name, None)} is now"
            f" {describe(raw_attribute(change.owner, change.name))}"
            for change in foreign
        )

    def _is_foreign(self, change: Change) -> bool:
        """Whether somebody else has replaced our object since."""
        return not self.holds(raw_attribute(change.owner, change.name))

    @property
    def _package(self) -> str:
        return self.patch.module.partition(".")[0]

    def _find(self, wanted: Any, *, since: str | None = None, classes: bool = True) -> list[Place]:
        """Places that hold an object; none for plain data, which has no identity of its own."""
        if not is_shared(wanted):
            return []
        package, everywhere = self._package, self._everywhere
        return find_places(wanted, package, everywhere=everywhere, since=since, classes=classes)
