"""Choosing patches for the installed versions; the engine knows nothing about versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from accel_bridge.errors import PatchError
from accel_bridge.patching._record import Patch, Shape

VersionOf = Callable[[str], "str | None"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """One patch for each id.

    :param patches: in the given order, each pinned to the installed version.
    :param excluded: why a patch is not for that version, by id.
    :param warnings: a line for a person, by id: patches left out because of the installed version.
    """

    patches: tuple[Patch, ...]
    excluded: Mapping[str, str]
    warnings: Mapping[str, str]


def choose(patches: Iterable[Patch], version_of: VersionOf) -> Chosen:
    """The variant of each patch that is for the installed version.

    A distribution that is not installed causes no warning; one with an unsuitable version does.

    :param version_of: installed version of a distribution, None when it is not installed.
    :raises PatchError: two patches with one id are both for the installed version.
    """
    variants: dict[str, list[Patch]] = {}
    for patch in patches:
        variants.setdefault(patch.id, []).append(patch)
    chosen: list[Patch] = []
    excluded: dict[str, str] = {}
    warnings: dict[str, str] = {}
    for id, group in variants.items():
        suited = [patch for patch in group if unmet_requirement(patch, version_of) is None]
        if len(suited) > 1:
            raise PatchError(
                f"Two patches have the id {id!r} and are for the same version.",
                evidence=[f"{patch.target}, requires {patch.requires}" for patch in suited],
                next="Give variants disjoint `requires`, and different patches different ids.",
            )
        if suited:
            chosen.append(pinned(suited[0], version_of))
            continue
        chosen.append(group[0])
        reason, warn = _unsuited(group, version_of)
        excluded[id] = reason
        if warn:
            warnings[id] = f"patch {id!r} is skipped: {reason}; without it: {group[0].loses}"
    return Chosen(tuple(chosen), excluded, warnings)


def unmet_requirement(patch: Patch, version_of: VersionOf) -> str | None:
    """Why the installed version does not suit, or None."""
    if patch.requires is None:
        return None
    requirement = Requirement(patch.requires)
    version = version_of(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} {version} is installed, but {requirement.specifier} is needed"
    return None


def pinned(patch: Patch, version_of: VersionOf) -> Patch:
    """The patch with the parameters and the digest that its target has in that version."""
    if patch.requires is None:
        return patch
    version = version_of(Requirement(patch.requires).name)
    patch = replace(patch, optional=patch.optional or may_precede(patch, version))
    shape = expected_shape(patch, version)
    if shape is None:
        return patch
    return replace(
        patch,
        parameters=shape.parameters if shape.parameters is not None else patch.parameters,
        # The digest of an assignment says nothing about the object that it makes.
        digest=shape.digest if shape.parameters is not None else None,
    )


def may_precede(patch: Patch, version: str | None) -> bool:
    """Whether a tree with that number may be older than the target, which the release then has.

    A checkout between two releases has the number of the coming one.
    """
    known = made_for(patch)
    if not (patch.elsewhere and known and version and is_version(version)):
        return False
    return Version(version) <= Version(known[0])


def expected_shape(patch: Patch, version: str | None) -> Shape | None:
    """What the target should look like: as in that version, or in the nearest one before it."""
    known = made_for(patch)
    if version in known:
        return patch.expected[str(version)]
    if not known:
        return None
    try:
        wanted = Version(version or "")
    except InvalidVersion:
        return patch.expected[known[-1]]
    before = [one for one in known if Version(one) <= wanted]
    return patch.expected[before[-1] if before else known[0]]


def made_for(patch: Patch) -> list[str]:
    """The versions in ``expected`` that ``requires`` admits, oldest first."""
    specifier = Requirement(patch.requires).specifier if patch.requires else None
    numbers = [name for name, shape in patch.expected.items() if shape.place and is_version(name)]
    suited = [n for n in numbers if specifier is None or specifier.contains(n, prereleases=True)]
    return sorted(suited, key=Version)


def is_version(name: str) -> bool:
    """Whether it is a number, not the name of a branch."""
    try:
        Version(name)
    except InvalidVersion:
        return False
    return True


def _unsuited(group: list[Patch], version_of: VersionOf) -> tuple[str, bool]:
    """Why no variant suits, and whether the user should be warned."""
    reasons = dict.fromkeys(unmet_requirement(patch, version_of) or "" for patch in group)
    needless = next((patch.elsewhere for patch in group if patch.elsewhere), "")
    installed = any(
        version_of(Requirement(patch.requires).name) is not None
        for patch in group
        if patch.requires
    )
    return "; ".join([*reasons, *filter(None, [needless])]), installed and not needless
