"""The order in which patches are applied, and the conflicts that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from accel_bridge.errors import PatchError
from accel_bridge.patching._record import Patch


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
