"""What a maintainer needs when a patch no longer fits: both texts, and a record to begin with."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from packaging.requirements import Requirement

from accel_bridge.patching._against import Fit, Verdict
from accel_bridge.patching._record import Kind, Patch
from accel_bridge.patching.source import SourceTree

#: Places of uses that are shown.
_USES = 5


def draft(verdict: Verdict, old: SourceTree, new: SourceTree, version: str) -> str:
    """Text for a person: where the target went, and how the record might follow.

    :param old: the tree that the patch fits.
    :param new: the tree that it was judged against.
    :param version: of ``new``.
    """
    patch = verdict.patch
    target = _new_target(patch, new)
    lines = [f"== {patch.id}: {verdict.fit.value}", f"record  {patch.make.__module__}"]
    moved = f" -> {target}" if target and target != patch.target else ""
    lines.append(f"target  {patch.target}{moved}")
    if verdict.detail:
        lines.append(f"found   {verdict.detail}")
    if target is None:
        name = patch.qualname.split(".")[-1]
        places = ", ".join(old.uses(name)[:_USES]) or "nowhere by that name"
        lines.append(f"used    until now at {places}")
    lines += ["", *_records(patch, target, version, verdict.fit), ""]
    lines += _difference(patch, target, old, new)
    return "\n".join(lines)


def _new_target(patch: Patch, tree: SourceTree) -> str | None:
    """The target, or the first place that has what it is called; None if there is none."""
    if tree.find(patch.target):
        return patch.target
    for place in tree.elsewhere(patch.target):
        file = place.partition(":")[0].removesuffix(".py").removesuffix("/__init__")
        candidate = f"{file.replace('/', '.')}:{patch.qualname}"
        if tree.find(candidate):
            return candidate
    return None


def _records(patch: Patch, target: str | None, version: str, fit: Fit) -> Iterator[str]:
    """Words of the present record and of its variant for the new version."""
    ends = f"<{version}"
    if patch.requires:
        requirement = Requirement(patch.requires)
        ends = f"{requirement.name}{requirement.specifier},{ends}".replace(",,", ",")
        begins = f"{requirement.name}>={version}"
    else:
        begins = f">={version}"
    if fit is Fit.BODY:
        yield "# Compare the bodies below. If the replacement still does the same, the table is all"
        yield f"# that changes: python tools/targets.py {version}=CHECKOUT"
        return
    yield f'requires="{ends}",  # in the present record'
    if target is None:
        yield f'elsewhere="since {version} ...",  # why it is not needed there; else a new target'
        return
    yield "# and a variant beside it:"
    yield f'id="{patch.id}",'
    yield f'target="{target}",'
    yield f'requires="{begins}",'
    if patch.kind is Kind.WRAP and patch.uses:
        yield f"uses={patch.uses!r},  # a tuple in place of a name: all its names"


def _difference(
    patch: Patch, target: str | None, old: SourceTree, new: SourceTree
) -> Iterator[str]:
    before = old.find(patch.target)
    after = new.find(target) if target else None
    if before is None:
        return
    yield from difflib.unified_diff(
        old.source(before).splitlines(),
        new.source(after).splitlines() if after else [],
        before.place,
        after.place if after else "nowhere",
        lineterm="",
    )
