"""Judging patches against another version of what they change, without importing it.

For one that no longer fits: both texts, and a record to begin with.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from packaging.requirements import Requirement

from accel_bridge.patching._record import Kind, Patch, Shape, spelled
from accel_bridge.patching.source import SourceTree
from accel_bridge.patching.variants import (
    VersionOf,
    is_version,
    made_for,
    pinned,
    unmet_requirement,
)

#: Places of uses that are shown.
_USES = 5


def draft(
    verdict: Verdict,
    old: SourceTree,
    new: SourceTree,
    version: str,
    distribution: str,
    *,
    earlier: bool = False,
) -> str:
    """Text for a person: where the target went, and how the record might follow.

    :param old: the tree that the patch fits.
    :param new: the tree that it was judged against.
    :param version: of ``new``.
    :param distribution: what is of that version, for a record that requires nothing yet.
    :param earlier: ``new`` is of an earlier release than ``old``.
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
    lines += [""]
    if verdict.fit is Fit.SIGNATURE and patch.kind is Kind.WRAP:
        lines += [*_renamed(patch, new), "# Otherwise a variant:"]
    lines += [*_records(patch, target, version, verdict.fit, distribution, earlier), ""]
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


def _records(
    patch: Patch, target: str | None, version: str, fit: Fit, distribution: str, earlier: bool
) -> Iterator[str]:
    """Words of the present record and of its variant for the new version."""
    known = Requirement(patch.requires or distribution)
    present, other = (">", "<=") if earlier else ("<", ">=")
    ends = ",".join(filter(None, (str(known.specifier), f"{present}{version}")))
    if fit is Fit.BODY:
        yield "# Compare the bodies below. If the replacement still does the same, the table is all"
        yield f"# that changes: python tools/targets.py {version}=CHECKOUT"
        return
    yield f'requires="{known.name}{ends}",  # in the present record'
    if target is None:
        since = "until" if earlier else "since"
        yield f'elsewhere="{since} {version} ...",  # why it is not needed there; else a new target'
        return
    yield "# and a variant beside it:"
    yield f'id="{patch.id}",'
    yield f'target="{target}",'
    yield f'requires="{known.name}{other}{version}",'
    if patch.kind is Kind.WRAP and patch.uses:
        yield f"uses={patch.uses!r},"


def _renamed(patch: Patch, tree: SourceTree) -> Iterator[str]:
    """Words of the record if the parameters that are missing only have other names."""
    found = tree.find(patch.target)
    parameters = dict.fromkeys((tree.shape(found).parameters if found else None) or ())
    names = [
        name if spelled(parameters, name) else (*([name] if isinstance(name, str) else name), "NEW")
        for name in patch.uses
    ]
    yield "# If a parameter has only another name, one record with both, read by context.argument:"
    yield f"uses={tuple(names)!r},"


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


#: A name that is no number, such as ``main``, is what comes after every release.
_NEWEST: Final = "9999"


class Fit(str, Enum):
    """How a patch fits another version, best first."""

    OK = "ok"
    #: No variant is for that version, and the record says why it needs none.
    NEEDLESS = "not needed"
    #: A replaced function has changed since the patch was written.
    BODY = "body changed"
    #: A replaced function has other parameters, or a wrapped one lacks a parameter that is used.
    SIGNATURE = "signature changed"
    #: The target is gone, but something with its name exists elsewhere.
    MOVED = "moved"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one patch fits.

    :param detail: what is different; empty if nothing is.
    :param place: file and line of the target, or of what has the same name.
    """

    patch: Patch
    fit: Fit
    detail: str = ""
    place: str = ""


def against_tree(
    patches: Iterable[Patch], tree: SourceTree, version_of: VersionOf = lambda _: None
) -> list[Verdict]:
    """The best variant's verdict for each id, if the tree has the package of its target.

    Of a namespace package it must have the portion, too.

    :param version_of: a distribution's version in that tree; None when it is not known.
    """
    judged = []
    for patch in patches:
        if tree.holds(patch.module.partition(".")[0]) and not tree.lacks_portion(patch.module):
            found = tree.find(patch.target)
            elsewhere = () if found else tuple(tree.elsewhere(patch.target))
            shape = tree.shape(found) if found else Shape(None, None, elsewhere=elsewhere)
            judged.append(judge(patch, shape, version_of))
    return _best(judged, version_of)


def against_version(patches: Iterable[Patch], version: str) -> list[Verdict]:
    """The best variant's verdict for each id with a record of that version."""
    known = [patch for patch in patches if version in patch.expected]
    number = version if is_version(version) else _NEWEST
    return _best([judge(patch, patch.expected[version]) for patch in known], lambda _: number)


def judge(patch: Patch, shape: Shape, version_of: VersionOf = lambda _: None) -> Verdict:
    """How a patch fits a target with that shape."""
    if not shape.place:
        if not shape.elsewhere and pinned(patch, version_of).optional:
            return Verdict(patch, Fit.NEEDLESS, patch.elsewhere)
        fit = Fit.MOVED if shape.elsewhere else Fit.GONE
        return Verdict(patch, fit, place=", ".join(shape.elsewhere[:3]))
    if patch.kind is Kind.WRAP and shape.parameters is not None:
        parameters = dict.fromkeys(shape.parameters)
        missing = [str(name) for name in patch.uses if spelled(parameters, name) is None]
        if missing:
            detail = f"no parameter {', '.join(missing)} in ({', '.join(parameters)})"
            return Verdict(patch, Fit.SIGNATURE, detail, shape.place)
    if patch.kind is Kind.REPLACE:
        return _judge_replacement(patch, shape)
    return Verdict(patch, Fit.OK, place=shape.place)


def _judge_replacement(patch: Patch, shape: Shape) -> Verdict:
    pins = [patch.expected[version] for version in made_for(patch)]
    pins = pins or [Shape(patch.parameters, patch.digest)]
    known = {pin.parameters for pin in pins}
    if shape.parameters is not None and shape.parameters not in known:
        expected = " or ".join(f"({', '.join(names)})" for names in known if names is not None)
        detail = f"({', '.join(shape.parameters)}) instead of {expected}"
        return Verdict(patch, Fit.SIGNATURE, detail, shape.place)
    if shape.digest not in {pin.digest for pin in pins}:
        return Verdict(patch, Fit.BODY, f"compare {patch.upstream}", shape.place)
    return Verdict(patch, Fit.OK, place=shape.place)


def _best(verdicts: Iterable[Verdict], version_of: VersionOf) -> list[Verdict]:
    """For each id, the best-fitting of the variants that are for the version, if any is."""
    order = list(Fit)
    variants: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        variants.setdefault(verdict.patch.id, []).append(verdict)
    best = []
    for group in variants.values():
        suited = [verdict for verdict in group if _suits(verdict.patch, version_of)]
        needless = next((one.patch.elsewhere for one in group if one.patch.elsewhere), "")
        if not suited and needless:
            best.append(Verdict(group[0].patch, Fit.NEEDLESS, needless))
        else:
            best.append(min(suited or group, key=lambda verdict: order.index(verdict.fit)))
    return best


def _suits(patch: Patch, version_of: VersionOf) -> bool:
    """Whether it is for the version, as far as that is known."""
    unknown = patch.requires is None or version_of(Requirement(patch.requires).name) is None
    return unknown or unmet_requirement(patch, version_of) is None


def known_versions(patches: Iterable[Patch]) -> Mapping[str, None]:
    """The versions that any record knows, in order."""
    return dict.fromkeys(version for patch in patches for version in patch.expected)
