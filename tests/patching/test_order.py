from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_bridge.errors import PatchError
from accel_bridge.patching import Patch, armed
from accel_bridge.patching._engine import check_conflicts, ordered

from .support import make_patch, tag


def p(id: str, target: str = "pkg:f", *after: str) -> Patch:
    return make_patch(target, tag(id), (), id=id, after=after)


def test_order_is_stable_but_for_after() -> None:
    patches = [p("a", "pkg:f", "c"), p("b", "pkg:g"), p("c", "pkg:h"), p("d", "pkg:i", "a")]
    assert [patch.id for patch in ordered(patches)] == ["b", "c", "a", "d"]


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12))
def test_every_order_keeps_after(edges: list[tuple[int, int]]) -> None:
    after = {n: {str(a) for a, b in edges if b == n and a < b} for n in range(8)}
    patches = [p(str(n), f"pkg:f{n}", *sorted(after[n])) for n in reversed(range(8))]
    ids = [patch.id for patch in ordered(patches)]
    assert sorted(ids) == [str(n) for n in range(8)]
    for n in range(8):
        assert all(ids.index(earlier) < ids.index(str(n)) for earlier in after[n])


def test_one_that_is_not_armed_leaves_the_order_of_the_others() -> None:
    middle = replace(p("b", "pkg:f", "a"), armed_when=lambda: False)
    patches = [p("c", "pkg:f", "b"), middle, p("a", "pkg:f")]
    there = ordered(armed(patches))
    assert [patch.id for patch in there] == ["a", "c"]
    check_conflicts(there)
    with pytest.raises(PatchError, match="does not exist"):
        ordered(armed([p("a", "pkg:f", "nobody")]))


def test_duplicate_ids_name_both_targets() -> None:
    with pytest.raises(PatchError) as error:
        ordered([p("a", "pkg:f"), p("a", "pkg:g")])
    assert all(word in str(error.value) for word in ("'a'", "pkg:f", "pkg:g"))


def test_after_across_modules_is_an_error() -> None:
    with pytest.raises(PatchError, match="another module"):
        ordered([p("a", "pkg:f"), p("b", "other:f", "a")])


def test_a_circle_is_an_error() -> None:
    with pytest.raises(PatchError, match="cycle") as error:
        ordered([p("a", "pkg:f", "b"), p("b", "pkg:g", "a"), p("free", "pkg:h")])
    assert "free" not in str(error.value)


@pytest.mark.parametrize(
    ("one", "two"), [("pkg:f", "pkg:f"), ("pkg:C", "pkg:C.m"), ("pkg:C.m", "pkg:C")]
)
def test_one_object_two_patches_no_order(one: str, two: str) -> None:
    with pytest.raises(PatchError) as error:
        check_conflicts([p("first", one), p("second", two)])
    assert all(word in str(error.value) for word in ("'first'", "'second'", one, two))
    check_conflicts([p("first", one), p("second", two, "first")])
