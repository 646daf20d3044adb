"""Judging patches against another version of what they change, without importing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from accel_bridge.patching._argument import spelled
from accel_bridge.patching._record import Kind, Patch, Shape
from accel_bridge.patching._static import SourceTree
from accel_bridge.patching._variants import made_for


class Fit(str, Enum):
    """How a patch fits another version, best first."""

    OK = "ok"
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


def against_tree(patches: Iterable[Patch], tree: SourceTree) -> list[Verdict]:
    """The best variant's verdict for each id, if the tree has the package of its target."""
    judged = []
    for patch in patches:
        if tree.holds(patch.module.partition(".")[0]):
            found = tree.find(patch.target)
            elsewhere = () if found else tuple(tree.elsewhere(patch.target))
            shape = tree.shape(found) if found else Shape(None, None, elsewhere=elsewhere)
            judged.append(judge(patch, shape))
    return _best(judged)


def against_version(patches: Iterable[Patch], version: str) -> list[Verdict]:
    """The best variant's verdict for each id with a record of that version."""
    known = [patch for patch in patches if version in patch.expected]
    return _best(judge(patch, patch.expected[version]) for patch in known)


def judge(patch: Patch, shape: Shape) -> Verdict:
    """How a patch fits a target with that shape."""
    if not shape.place:
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


def _best(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The best-fitting variant of each id."""
    order = list(Fit)
    best: dict[str, Verdict] = {}
    for verdict in verdicts:
        other = best.get(verdict.patch.id)
        if other is None or order.index(verdict.fit) < order.index(other.fit):
            best[verdict.patch.id] = verdict
    return list(best.values())


def known_versions(patches: Iterable[Patch]) -> Mapping[str, None]:
    """The versions that any record knows, in order."""
    return dict.fromkeys(version for patch in patches for version in patch.expected)
