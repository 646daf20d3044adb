"""constraints.txt pins what was tested, by version and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from itertools import chain

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from distribution.support import ROOT, pyproject

#: These need hardware's own libraries and are not part of what `make` installs.
NOT_TESTED_HERE = {"cuda", "windows", "hopper", "ascend"}

#: Tools that are pinned, and that `make setup` leaves out.
NOT_INSTALLED = {"maintain", "te"}

_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!+]+)")


def pins(text: str) -> dict[str, str]:
    """Name to version; anything that is not a comment or a pin is an error."""
    found = {}
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            continue
        match = _PIN.fullmatch(line)
        assert match, f"not NAME==VERSION: {line!r}"
        name = canonicalize_name(match[1])
        assert name not in found, f"{name} is pinned twice"
        found[name] = match[2]
    return found


def unpinned(requirements: list[str], pinned: dict[str, str]) -> list[str]:
    """Requirements without a pin that satisfies them."""
    missing = []
    for text in requirements:
        requirement = Requirement(text)
        version = pinned.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            missing.append(text)
    return missing


def requirements(without: set[str]) -> list[str]:
    """What the project and its extras ask for, save some extras."""
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    listed = (names for extra, names in extras.items() if extra not in without)
    return [*project["dependencies"], *chain.from_iterable(listed)]


def installed_for(asked: list[str]) -> Iterator[str]:
    """Everything that is installed because of ``asked``, by its canonical name."""
    todo = [Requirement(text) for text in asked]
    seen = set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, *sorted(requirement.extras)) in seen:
            continue
        seen.add((name, *sorted(requirement.extras)))
        yield name
        todo += (
            inner
            for inner in map(Requirement, metadata.requires(name) or ())
            if inner.marker is None
            or any(inner.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras))
        )


TEXT = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_it_holds_versions_only() -> None:
    assert len(pins(TEXT)) > 50
    assert "accel-bridge" not in pins(TEXT)


def test_every_requirement_has_a_pin_that_satisfies_it() -> None:
    assert unpinned(requirements(NOT_TESTED_HERE), pins(TEXT)) == []


def test_everything_that_is_installed_has_a_pin() -> None:
    names = set(installed_for(requirements(NOT_TESTED_HERE | NOT_INSTALLED)))
    assert {"torch", "megatron-core", "wandb"} <= names
    assert sorted(names - set(pins(TEXT))) == []
