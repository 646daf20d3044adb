from __future__ import annotations

import pytest

from accel_bridge.errors import PatchError
from accel_bridge.patching import Kind

from .support import make_patch, tag


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
