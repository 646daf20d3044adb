from __future__ import annotations

import dataclasses

import pytest

from accel_bridge._errors import PatchError
from accel_bridge.patching import Kind

from .support import make_patch, tag


def test_a_patch_knows_the_parts_of_its_target() -> None:
    patch = make_patch("pkg.mod:Class.method", tag("x"), ("self",))
    assert (patch.module, patch.qualname) == ("pkg.mod", "Class.method")
    with pytest.raises(dataclasses.FrozenInstanceError):
        patch.id = "y"  # type: ignore[misc]


@pytest.mark.parametrize("target", ["pkg.mod", "pkg.mod:", ":name", "pkg:a..b", "pkg:a b"])
def test_a_target_is_module_and_qualname(target: str) -> None:
    with pytest.raises(PatchError, match="not module:qualname"):
        make_patch(target, tag("x"), ())


@pytest.mark.parametrize("kind", [Kind.REPLACE, Kind.ATTRIBUTE])
def test_only_a_wrapper_uses_parameters(kind: Kind) -> None:
    with pytest.raises(PatchError, match="wraps nothing"):
        make_patch("pkg:x", tag("x"), ("x",), kind=kind, uses=("x",))


def test_what_a_patch_needs_comes_before_it() -> None:
    with pytest.raises(PatchError, match="in `needs` but not in `after`"):
        make_patch("pkg:x", tag("x"), (), after=("a",), needs=("a", "b"))


def test_a_requirement_is_one() -> None:
    with pytest.raises(PatchError, match="malformed `requires`"):
        make_patch("pkg:x", tag("x"), (), requires="a requirement?")
