"""Patches are chosen for the installed version before the engine sees them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from accel_bridge.errors import PatchError
from accel_bridge.patching import Kind, Patch, Shape, State, choose

from .conftest import Writer
from .support import engine, make_patch, states, tag

OLD, NEW = Shape(("x",), "old", "a.py:1"), Shape(("x", "y"), "new", "a.py:2")


def variant(requires: str | None, id: str = "p") -> Patch:
    expected = {"1.0": OLD, "1.5": OLD, "2.0": NEW, "2.1": NEW, "main": NEW}
    return make_patch(
        "m:f", tag("x"), kind=Kind.REPLACE, id=id, requires=requires, expected=expected
    )


@pytest.mark.parametrize(
    ("version", "reason", "warns"),
    [
        ("1.0", None, False),
        ("1.9", None, False),
        ("2.0", "dist 2.0 is installed, but <2,>=1 is needed", True),
        ("1.0rc1", "dist 1.0rc1 is installed, but <2,>=1 is needed", True),
        (None, "dist is not installed", False),
    ],
)
def test_a_requirement(version: str | None, reason: str | None, warns: bool) -> None:
    chosen = choose([variant("dist>=1,<2")], {"dist": version}.get)
    assert chosen.excluded.get("p") == reason
    assert ("p" in chosen.warnings) is warns
    if warns:
        assert chosen.warnings["p"] == f"patch 'p' is skipped: {reason}; without it: the feature"


def test_one_variant_is_chosen_and_pinned() -> None:
    group = [variant("dist<2"), variant("dist>=2,<3")]
    for version, shape in {"1.2": OLD, "1.5": OLD, "2.0": NEW, "2.9": NEW}.items():
        (patch,) = choose(group, {"dist": version}.get).patches
        assert (patch.parameters, patch.digest) == (shape.parameters, shape.digest), version
    chosen = choose(group, {"dist": "3.0"}.get)
    assert [patch.id for patch in chosen.patches] == ["p"]
    assert "<2" in chosen.excluded["p"]
    assert "<3" in chosen.excluded["p"]


def test_two_for_one_version_are_refused() -> None:
    with pytest.raises(PatchError, match="for the same version"):
        choose([variant("dist>=1"), variant("dist>=2")], lambda name: "2.0")


def test_versions_come_from_whoever_knows_them() -> None:
    patches = [variant("old<1", "old"), variant("new>=1", "new"), variant("gone", "gone")]
    chosen = choose(patches, {"old": "2", "new": "1"}.get)
    assert set(chosen.excluded) == {"old", "gone"}


@pytest.mark.parametrize(
    ("version", "elsewhere", "state"),
    [
        ("2.0", "before 2 it does so itself", State.SKIPPED),
        ("2.0rc1", "before 2 it does so itself", State.SKIPPED),
        ("2.1", "before 2 it does so itself", State.FAILED),
        ("2.0", "", State.FAILED),
    ],
)
def test_a_tree_between_releases_has_the_number_of_the_next(
    write: Writer, version: str, elsewhere: str, state: State
) -> None:
    name = write(a="")
    patch = make_patch(
        f"{name}.a:f", tag("x"), requires="dist>=2.dev0", elsewhere=elsewhere, expected={"2.0": NEW}
    )
    (chosen,) = choose([patch], {"dist": version}.get).patches
    with engine(chosen, warn=lambda line: None) as active:
        importlib.import_module(f"{name}.a")
        assert states(active) == {"p": state}
        assert "no f" in active.statuses[0].reason + active.statuses[0].error


def test_a_changed_body_is_reported_and_refused_when_strict(a: Any) -> None:
    patch = make_patch(
        f"{a.__name__}:f", lambda c: lambda x: 2, ("x",), kind=Kind.REPLACE, digest="another body"
    )
    lines: list[str] = []
    with engine(patch, warn=lines.append) as active:
        assert a.f(1) == 2
        assert (
            active.statuses[0].reason == "the upstream body has changed since the patch was written"
        )
    assert len(lines) == 1
    value = make_patch(f"{a.__name__}:f", lambda c: len, kind=Kind.ATTRIBUTE, digest="another body")
    with engine(value, strict=True):
        assert a.f is len  # a value has no body to change
    strict = engine(patch, strict=True)
    with pytest.raises(PatchError, match="body has changed"):
        strict.activate()
    assert states(strict) == {"p": State.FAILED}
    assert a.f(1) == 1
