"""Targets are found in sources that nobody imports, and patches are judged against them."""

from __future__ import annotations

import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel_bridge.patching import (
    Fit,
    Kind,
    Patch,
    Shape,
    SourceTree,
    Verdict,
    against_tree,
    source_digest,
)
from accel_bridge.patching.source import NoSuchTree

from .support import make_patch, tag

FILES = {
    "a.py": """
        import functools
        from .b import Base, helper as renamed

        raise RuntimeError("imported")

        def f(x, *args, y=1, **kwargs):
            return x

        try:
            from missing import g
        except ImportError:
            def g(x): ...

        if True:
            @functools.cache
            def decorated(x):
                return x

        class C(Base):
            def own(self, x): ...

        class Plain: ...

        value = renamed
        FLAG: bool = True
    """,
    "b.py": """
        def helper(p, /, q): ...

        class Base:
            def __init__(self, size): ...
            def inherited(self, z): ...
    """,
    "moved/__init__.py": "from ..b import helper as again\n\ndef gone_elsewhere(x): ...",
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip())
    return SourceTree(tmp_path, {"pkg"})


@pytest.mark.parametrize(
    ("target", "parameters", "place"),
    [
        ("pkg.a:f", ("x", "args", "y", "kwargs"), "pkg/a.py:6"),
        ("pkg.a:g", ("x",), "pkg/a.py:12"),
        ("pkg.a:decorated", ("x",), "pkg/a.py:15"),
        ("pkg.a:C", ("self", "size"), "pkg/a.py:19"),
        ("pkg.a:C.own", ("self", "x"), "pkg/a.py:20"),
        ("pkg.a:C.inherited", ("self", "z"), "pkg/b.py:5"),
        ("pkg.a:renamed", ("p", "q"), "pkg/b.py:1"),
        ("pkg.moved:again", ("p", "q"), "pkg/b.py:1"),
        ("pkg.a:value", None, "pkg/a.py:24"),
        ("pkg.a:FLAG", None, "pkg/a.py:25"),
        ("pkg.a:Plain", None, "pkg/a.py:22"),
    ],
)
def test_targets_are_found(
    tree: SourceTree, target: str, parameters: tuple[str, ...] | None, place: str
) -> None:
    found = tree.find(target)
    assert found is not None
    shape = tree.shape(found)
    assert (shape.parameters, shape.place) == (parameters, place)
    assert shape.digest is not None
    assert "pkg.a" not in sys.modules


def test_a_wheel_is_read_as_it_is(tmp_path: Path, tree: SourceTree) -> None:
    wheel = tmp_path / "pkg-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(f"pkg/{name}", textwrap.dedent(text).lstrip())
    packed = SourceTree(wheel, {"pkg"})
    for target in ("pkg.a:f", "pkg.a:C.inherited"):
        one, other = tree.find(target), packed.find(target)
        assert one is not None
        assert other is not None
        assert tree.shape(one) == packed.shape(other)


@pytest.mark.parametrize("make", [lambda p: p / "none", lambda p: p, lambda p: p / "x.whl"])
def test_no_source_is_an_error_in_three_parts(tmp_path: Path, make: Any) -> None:
    (tmp_path / "x.whl").write_text("no archive")
    with pytest.raises(NoSuchTree, match=r"(?s)no source of pkg.*evidence.*next"):
        SourceTree(make(tmp_path), {"pkg"})


F = Shape(
    ("x", "args", "y", "kwargs"),
    source_digest("def f(x, *args, y=1, **kwargs):\n    return x"),
    "pkg/a.py:6",
)


def replaced(**changes: Any) -> Patch:
    expected = {"1.0": F, "2.0": Shape(("x",), "other", "pkg/a.py:1"), "3.0": Shape(None, None)}
    options = {"expected": expected, "requires": "pkg<2", **changes}
    return make_patch("pkg.a:f", tag("x"), kind=Kind.REPLACE, **options)


@pytest.mark.parametrize(
    ("patch", "fit", "place"),
    [
        (replaced(), Fit.OK, "pkg/a.py:6"),
        (replaced(requires="pkg>=2,<3"), Fit.SIGNATURE, "pkg/a.py:6"),
        (
            replaced(expected={"1.0": Shape(F.parameters, "old", "pkg/a.py:1")}),
            Fit.BODY,
            "pkg/a.py:6",
        ),
        (make_patch("pkg.a:f", tag("x"), ("x", "y")), Fit.OK, "pkg/a.py:6"),
        (make_patch("pkg.a:f", tag("x"), (("new", "x"),)), Fit.OK, "pkg/a.py:6"),
        (make_patch("pkg.a:f", tag("x"), ("z",)), Fit.SIGNATURE, "pkg/a.py:6"),
        (make_patch("pkg.a:gone_elsewhere", tag("x"), ()), Fit.MOVED, "pkg/moved/__init__.py:3"),
        (make_patch("pkg.c:C.own", tag("x"), ()), Fit.MOVED, "pkg/a.py:19"),
        (make_patch("pkg.a:nowhere", tag("x"), ()), Fit.GONE, ""),
        (make_patch("pkg.a:FLAG", tag("x"), kind=Kind.ATTRIBUTE), Fit.OK, "pkg/a.py:25"),
    ],
)
def test_patches_are_judged(tree: SourceTree, patch: Patch, fit: Fit, place: str) -> None:
    (verdict,) = against_tree([patch], tree)
    assert (verdict.fit, verdict.place) == (fit, place)
    assert bool(verdict.detail) is (fit in (Fit.SIGNATURE, Fit.BODY))


def test_a_patch_that_a_version_does_not_need(tree: SourceTree) -> None:
    later = make_patch("pkg.a:nowhere", tag("x"), (), requires="pkg>=3", elsewhere="2 does it")
    assert against_tree([later], tree, lambda _: "2.0")[0] == Verdict(
        later, Fit.NEEDLESS, "2 does it"
    )
    assert against_tree([later], tree, lambda _: "3.0")[0].fit is Fit.GONE
    first = replace(later, expected={"3.0": Shape(None, None, "a.py:1"), "2.0": Shape(None, None)})
    assert against_tree([first], tree, lambda _: "3.0")[0].fit is Fit.NEEDLESS
    assert against_tree([first], tree, lambda _: "3.1")[0].fit is Fit.GONE
    unexplained = replace(later, elsewhere="")
    assert against_tree([unexplained], tree, lambda _: "2.0")[0].fit is Fit.GONE


def test_a_variant_for_another_version_does_not_count(tree: SourceTree) -> None:
    """f fits, and the version would take the variant whose target is gone."""
    variants = [replaced(), make_patch("pkg.a:nowhere", tag("x"), (), requires="pkg>=2")]
    assert against_tree(variants, tree, lambda _: "1.0")[0].fit is Fit.OK
    assert against_tree(variants, tree, lambda _: "2.0")[0].fit is Fit.GONE


def test_a_wheel_may_lack_a_portion_of_a_namespace_package(tmp_path: Path) -> None:
    (tmp_path / "space" / "core").mkdir(parents=True)
    (tmp_path / "space" / "core" / "a.py").write_text("def f(): ...\n")
    portions = [
        make_patch("space.core.a:f", tag("x"), (), id="there"),
        make_patch("space.core.b:f", tag("x"), (), id="gone"),
        make_patch("space.training.a:f", tag("x"), (), id="not judged"),
    ]
    verdicts = against_tree(portions, SourceTree(tmp_path, {"space"}))
    assert {v.patch.id: v.fit for v in verdicts} == {"there": Fit.OK, "gone": Fit.MOVED}
    (tmp_path / "space" / "__init__.py").touch()
    assert len(against_tree(portions, SourceTree(tmp_path, {"space"}))) == 3
