"""The patch engine: orders patches, applies them when modules are imported, undoes them exactly."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from inspect import isfunction
from threading import RLock
from types import ModuleType, new_class
from typing import Any

from accel_bridge.errors import PatchError
from accel_bridge.patching._record import Kind, Patch, PatchContext, State, Status
from accel_bridge.patching.target import (
    HOLDERS,
    Place,
    Refusal,
    Target,
    TargetMissing,
    describe,
    find_places,
    is_shared,
    resolve,
    unwrap,
)
from accel_bridge.patching.verify import (
    changed_body,
    check_new,
    check_target,
    constructor,
    signature,
)
from accel_bridge.process.import_hook import ImportHook
from accel_bridge.process.journal import Change, Journal, own_namespace, raw_attribute


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


def ordered(patches: Iterable[Patch]) -> tuple[Patch, ...]:
    """The patches in the given order, each moved behind the patches it names in ``after``.

    :raises PatchError: a duplicate id, an ``after`` that names an unknown patch or one of another
        module, or a cycle.
    """
    by_id: dict[str, Patch] = {}
    for patch in patches:
        if patch.id in by_id:
            raise _conflict(f"Two patches have the id {patch.id!r}.", by_id[patch.id], patch)
        by_id[patch.id] = patch
    for patch in by_id.values():
        _check_after(patch, by_id)

    done: dict[str, Patch] = {}
    waiting = list(by_id.values())
    while waiting:
        ready = next((patch for patch in waiting if all(i in done for i in patch.after)), None)
        if ready is None:
            raise PatchError(
                "Patches wait for one another in a cycle.",
                evidence=[f"{patch.id}: after {', '.join(patch.after)}" for patch in waiting],
                next="Remove one of these ids from `after`.",
            )
        waiting.remove(ready)
        done[ready.id] = ready
    return tuple(done.values())


def armed(patches: Sequence[Patch]) -> list[Patch]:
    """Those whose command is under way.

    A patch that came after one that is left out comes after what that one came after.
    """
    there = {patch.id for patch in patches if patch.armed_when is None or patch.armed_when()}
    by_id = {patch.id: patch for patch in patches}
    found = []
    for patch in patches:
        if patch.id not in there:
            continue
        if any(one in by_id and one not in there for one in patch.after):
            before = sorted(all_before(patch, by_id))
            kept = tuple(one for one in before if one in there or one not in by_id)
            found.append(replace(patch, after=kept))
        else:
            found.append(patch)
    return found


def check_conflicts(patches: Sequence[Patch]) -> None:
    """Refuse two patches of one target, or of a class and its member, with no declared order.

    :param patches: those in force, in order.
    :raises PatchError: naming both ids and both targets.
    """
    by_id = {patch.id: patch for patch in patches}
    for position, later in enumerate(patches):
        earlier_ids = all_before(later, by_id)
        for earlier in patches[:position]:
            if _overlap(earlier, later) and earlier.id not in earlier_ids:
                raise _conflict(
                    f"Patches {earlier.id!r} and {later.id!r} change the same object"
                    " without a declared order.",
                    earlier,
                    later,
                )


def _check_after(patch: Patch, by_id: Mapping[str, Patch]) -> None:
    for other in patch.after:
        if other not in by_id:
            raise PatchError(
                f"Patch {patch.id!r} comes after {other!r}, which does not exist.",
                evidence=f"known ids: {', '.join(by_id)}",
                next=f"Correct `after` of {patch.id!r}.",
            )
        if by_id[other].module != patch.module:
            raise _conflict(
                f"Patch {patch.id!r} comes after {other!r}, which patches another module:"
                " that order cannot be kept.",
                by_id[other],
                patch,
            )


def all_before(patch: Patch, by_id: Mapping[str, Patch]) -> set[str]:
    """Ids that ``patch`` comes after, directly or through others."""
    found: set[str] = set()
    open_ids = list(patch.after)
    while open_ids:
        other = open_ids.pop()
        if other not in found:
            found.add(other)
            open_ids += by_id[other].after if other in by_id else ()
    return found


def _overlap(first: Patch, second: Patch) -> bool:
    one, two = f"{first.target}.", f"{second.target}."
    return one.startswith(two) or two.startswith(one)


def _conflict(what: str, first: Patch, second: Patch) -> PatchError:
    return PatchError(
        what,
        evidence=[f"{patch.id}: {patch.kind.value} {patch.target}" for patch in (first, second)],
        next="Name the earlier patch in `after` of the later one, or leave one of them out.",
    )


_log = logging.getLogger("accel_bridge.patching")

_STANDING = (State.APPLIED, State.REACHED)


def _no_kernels(contract: str) -> str | None:
    return f"no backend provides the kernel {contract!r}"


def _select_all(patch_id: str) -> str | None:
    return None


class PatchEngine:
    """Applies patches and undoes them.

    ``activate`` patches modules that are loaded and hooks the import of the others; ``deactivate``
    restores every original object. Both can be repeated; ``with`` does both.

    A small wrapper counts the calls of a patched function and stays at the target. Places that
    keep the original are listed in :mod:`accel_bridge.patching.target`. The engine knows nothing
    about versions: :func:`accel_bridge.patching.choose` picks the patches beforehand.

    **Other tools on top.** If another tool has replaced our object by the time of ``deactivate``,
    that tool's object stays and ``warn`` gets its name. If it calls our function, the call reaches
    the original from then on.

    :param patches: in the order of application, see :class:`Patch`.after for exceptions.
    :param host: passed to ``make`` and ``skip_when``.
    :param missing_kernel: why the host does not offer a kernel contract, None if it does.
    :param strict: raise PatchError where the default warns.
    :param selection: why the user excluded a patch id, None if not excluded.
    :param everywhere: rebind the originals in all loaded modules, not only in the target's own
        top-level package: for a framework that was imported before.
    :param forced: whether the user asked for this patch id by name. Its ``skip_when`` is then
        ignored; a missing kernel still skips it.
    :param warn: gets one line for a person.
    :raises PatchError: duplicate ids, cycles, or a conflict between two patches.
    """

    def __init__(
        self,
        patches: Iterable[Patch],
        *,
        host: Any = None,
        missing_kernel: Callable[[str], str | None] = _no_kernels,
        strict: bool = False,
        selection: Callable[[str], str | None] = _select_all,
        everywhere: bool = False,
        forced: Callable[[str], bool] = lambda patch_id: False,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self._patches = ordered(patches)
        self._host = host
        self._missing_kernel = missing_kernel
        self._strict = strict
        self._everywhere = everywhere
        self._forced = forced
        self._warn = warn
        self._lock = RLock()
        self._hook: ImportHook | None = None
        self._applied: list[Applied] = []
        self._unfinished: dict[str, ModuleType] = {}
        self._busy: set[tuple[str, int]] = set()
        self._excluded = {patch.id: selection(patch.id) for patch in self._patches}
        self._in_force = tuple(p for p in self._patches if self._excluded[p.id] is None)
        check_conflicts(self._in_force)
        self._by_id = {patch.id: patch for patch in self._patches}
        self._statuses = {patch.id: Status(patch) for patch in self._patches}

    @property
    def active(self) -> bool:
        """Whether the engine is active."""
        return self._hook is not None

    @property
    def statuses(self) -> tuple[Status, ...]:
        """One status per patch, in order, as of now."""
        self._settle()
        for applied in self._applied:
            status = self._statuses[applied.patch.id]
            if applied.reach.called:
                status.reached = True
                if status.state is State.APPLIED:
                    status.state = State.REACHED
        return tuple(self._statuses[patch.id] for patch in self._patches)

    def unreached(self) -> tuple[Status, ...]:
        """Patches that are in place and counted but were never called."""
        return tuple(s for s in self.statuses if s.state is State.APPLIED and s.counted)

    def activate(self) -> None:
        """Patch what is loaded and watch for the rest. Does nothing when already active.

        A module in the middle of its import is patched as far as it has got, and again when it is
        done. A module that another thread has found but not yet begun to execute is missed and
        stays REGISTERED: activate before threads import.

        :raises PatchError: in strict mode, with everything undone.
        """
        with self._lock:
            if self._hook is not None:
                return
            watched = {patch.module for patch in self._in_force}
            self._hook = ImportHook(watched, self._executed, self._settle)
        try:
            self._begin()
            self._hook.install()
            for name in dict.fromkeys(patch.module for patch in self._in_force):
                module = sys.modules.get(name)
                if isinstance(module, ModuleType):
                    self._patch_module(
                        name, module, finished=not _is_executing(module), fresh=False
                    )
        except BaseException:
            self.deactivate()
            raise

    def deactivate(self) -> None:
        """Undo every patch, newest first, and remove the import hook."""
        with self._lock:
            if self._hook is None:
                return
            self._hook.remove()
            self._hook = None
            self._unfinished.clear()
            _ = self.statuses  # takes over which patches were reached
            left = self._undo_all()
        for line in left:
            self._warn(line)

    def __enter__(self) -> PatchEngine:
        self.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self.deactivate()

    def _begin(self) -> None:
        """Fresh statuses."""
        for patch in self._patches:
            self._statuses[patch.id] = Status(patch)
            if reason := self._excluded[patch.id]:
                self._skip(patch, reason)

    def _undo_all(self) -> list[str]:
        """Undo every patch; returns a line for each place that somebody else has changed."""
        lines: list[str] = []
        for applied in reversed(self._applied):
            status = self._statuses[applied.patch.id]
            foreign = applied.undo()
            if status.state in _STANDING:
                status.state, status.reason = State.REVERTED, ""
            if foreign:
                status.reason = f"{'; '.join(foreign)}, which stays"
                lines.append(f"patch {applied.patch.id!r} is undone, but {status.reason}")
        self._applied = []
        return lines

    def _executed(self, name: str, module: ModuleType) -> None:
        """The import hook: a module was executed, for the first time or again."""
        self._unfinished.pop(name, None)
        self._patch_again(name, module)

    def _settle(self) -> None:
        """Patch the modules that were being executed when we were activated and are done now."""
        for name, module in tuple(self._unfinished.items()):
            if _is_executing(module) or self._unfinished.pop(name, None) is None:
                continue
            if sys.modules.get(name) is module:  # else its import failed
                self._patch_again(name, module)

    def _patch_again(self, name: str, module: ModuleType) -> None:
        """Patch a module that may have overwritten what was patched before."""
        with self._lock:
            for applied in self._applied:
                if applied.module is module:
                    applied.forget_overwritten()
        self._patch_module(name, module, finished=True, fresh=True)

    def _patch_module(self, name: str, module: ModuleType, *, finished: bool, fresh: bool) -> None:
        if not finished:
            self._unfinished[name] = module
        for patch in self._in_force:
            if patch.module == name:
                self._patch_once(patch, module, finished=finished, fresh=fresh)

    def _patch_once(self, patch: Patch, module: ModuleType, *, finished: bool, fresh: bool) -> None:
        """Apply one patch unless another thread, or a call further up, is doing so."""
        key = (patch.id, id(module))
        with self._lock:
            if key in self._busy:
                return
            self._busy.add(key)
        try:
            self._apply(patch, module, fresh=fresh)
        except TargetMissing as missing:
            if patch.optional and finished:
                self._skip(patch, f"{missing} in this version")
            elif finished:
                self._fail(patch, str(missing), missing)
        except Refusal as refusal:
            self._fail(patch, str(refusal), refusal)
        except Exception as error:
            self._fail(patch, f"raised {type(error).__name__}: {error}", error)
        finally:
            self._busy.discard(key)

    def _apply(self, patch: Patch, module: ModuleType, *, fresh: bool) -> None:
        reason = self._reason_to_skip(patch)
        if reason:
            self._skip(patch, reason)
            return
        target = resolve(module, patch.qualname)
        if self._stands(patch, target):
            return
        upstream = self._upstream(patch, target)
        check_target(patch, target, upstream)
        declared = None if patch.kind is Kind.ATTRIBUTE else signature(upstream)
        context = PatchContext(target.original, module, target.owner, self._host, patch, declared)
        new = patch.make(context)
        if (
            patch.kind is Kind.WRAP
            and isfunction(new)
            and not hasattr(new, "__wrapped__")
            # What the original itself wraps: the two would lead to one another.
            and inspect.unwrap(target.original, stop=lambda one: one is new) is not new
        ):
            functools.update_wrapper(new, target.original)
        if patch.kind is not Kind.ATTRIBUTE:
            check_new(target, upstream, new)
        changed = changed_body(patch, upstream)
        if changed and self._strict:
            raise Refusal(changed)
        applied = Applied(
            patch, module, target, upstream=upstream, new=new, everywhere=self._everywhere
        )
        with self._lock:
            if self._hook is None or self._stands(patch, target):
                return  # deactivated, or applied by another thread, while make ran
            applied.install(fresh=fresh)
            self._applied.append(applied)
        status = self._statuses[patch.id]
        status.state, status.error = State.APPLIED, ""
        status.counted, status.aliases = applied.counted, applied.aliases
        status.reason = changed or ("" if applied.counted else "not counted")
        if changed:
            self._warn(f"patch {patch.id!r}: {changed}; compare {patch.upstream}")

    def _stands(self, patch: Patch, target: Target) -> bool:
        return any(a.patch is patch and a.stands_at(target) for a in self._applied)

    def _reason_to_skip(self, patch: Patch) -> str | None:
        """Why the host, or a patch that is not in place, rules out a patch."""
        if patch.skip_when is not None and not self._forced(patch.id):
            reason = patch.skip_when(self._host)
            if reason:
                return reason
        for contract in patch.kernels:
            if reason := self._missing_kernel(contract):
                return reason
        for other in (self._statuses[id] for id in patch.needs):
            if other.state not in _STANDING:
                return f"it needs patch {other.patch.id!r}, which is not in place: {other.reason}"
        return None

    def _upstream(self, patch: Patch, target: Target) -> Any:
        """The upstream project's own object, below the patches that stand at the target.

        :raises Refusal: a patch that ``patch`` does not come after has already changed the same
            object under another name.
        """
        earlier = [
            a for a in self._applied if a.stands_at(target) or (a.counted and a.holds(target.raw))
        ]
        for applied in earlier:
            if applied.patch.id not in all_before(patch, self._by_id):
                raise Refusal(
                    f"{patch.target} is the same object as {applied.patch.target},"
                    f" which patch {applied.patch.id!r} has already changed"
                )
        return earlier[0].upstream if earlier else target.original

    def _skip(self, patch: Patch, reason: str) -> None:
        status = self._statuses[patch.id]
        status.state, status.reason = State.SKIPPED, reason

    def _fail(self, patch: Patch, reason: str, error: Exception) -> None:
        status = self._statuses[patch.id]
        status.state, status.reason = State.FAILED, reason
        status.error = "".join(traceback.format_exception(error))
        if self._strict:
            raise PatchError(
                f"Patch {patch.id!r} could not be applied: {reason}.",
                evidence=(f"target: {patch.target}", f"without it: {patch.loses}"),
                next=f"Exclude it with ACCEL_BRIDGE_PATCHES=-{patch.id},"
                " or install a version it was written for.",
            ) from error
        self._warn(f"patch {patch.id!r} failed: {reason}; without it: {patch.loses}")


def _is_executing(module: ModuleType) -> bool:
    """Whether the import of a module has begun and not ended."""
    return bool(getattr(own_namespace(module).get("__spec__"), "_initializing", False))
