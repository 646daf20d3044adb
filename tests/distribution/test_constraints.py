"""constraints.txt pins what was tested, by version and nothing else."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from distribution.support import ROOT, pyproject

#: These need hardware's own libraries and are not part of what `make` installs.
NOT_TESTED_HERE = {"cuda", "ascend"}

_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.!+]+)")


def pins(text: str) -> dict[str, str]:
    """Name to version; anything that is not a comment or a pin is an error."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
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


def requirements() -> list[str]:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    tested = (listed for extra, listed in extras.items() if extra not in NOT_TESTED_HERE)
    return [*project["dependencies"], *chain.from_iterable(tested)]


TEXT = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def test_it_holds_versions_only() -> None:
    assert len(pins(TEXT)) > 50
    assert "accel-bridge" not in pins(TEXT)


@pytest.mark.parametrize("line", ["a @ https://x/a.whl", "-e .", "a>=1", "--index-url x", "a"])
def test_a_line_that_is_no_pin_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError, match="not NAME==VERSION"):
        pins(f"{TEXT}{line}\n")


def test_every_requirement_has_a_pin_that_satisfies_it() -> None:
    assert unpinned(requirements(), pins(TEXT)) == []


def test_a_missing_or_wrong_pin_is_noticed() -> None:
    assert unpinned(["torch>=2.6", "Rich>=13"], {"torch": "2.5", "rich": "14"}) == ["torch>=2.6"]
    assert unpinned(["gone"], {"torch": "2.5"}) == ["gone"]
