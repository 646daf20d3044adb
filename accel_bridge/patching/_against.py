"""Judging patches against another version of what they change, without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from packaging.requirements import Requirement

from accel_bridge.patching._record import Kind, Patch, Shape, spelled
from accel_bridge.patching.source import SourceTree
from accel_bridge.patching.variants import VersionOf, is_version, made_for, unmet_requirement

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
            judged.append(judge(patch, shape))
    return _best(judged, version_of)


def against_version(patches: Iterable[Patch], version: str) -> list[Verdict]:
    """The best variant's verdict for each id with a record of that version."""
    known = [patch for patch in patches if version in patch.expected]
    number = version if is_version(version) else _NEWEST
    return _best([judge(patch, patch.expected[version]) for patch in known], lambda _: number)


def judge(patch: Patch, shape: Shape) -> Verdict:
    """How a patch fits a target with that shape."""
    if not shape.place:
        if patch.optional and not shape.elsewhere:
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
