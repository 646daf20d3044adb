"""What undo must not do: clobber others, or leave half a patch."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import pytest

from accel_bridge.patching import Kind, PatchContext, State

from .conftest import Writer
from .support import assert_same, engine, make_patch, snapshot, states, tag


def foreign(function: Any) -> Any:
    """Another tool's wrapper, put on top of ours."""

    @functools.wraps(function)
    def foreign_wrapper(*args: Any) -> Any:
        return "foreign", function(*args)

    return foreign_wrapper


class TestSomebodyElseOnTop:
    def test_their_object_stays_and_is_named(self, write: Writer) -> None:
        name = write(a="def f(x): return x", b="from .a import f as g")
        b = importlib.import_module(f"{name}.b")
        a = importlib.import_module(f"{name}.a")
        original = a.f
        lines: list[str] = []
        active = engine(make_patch(f"{name}.a:f", tag("w"), ("x",)), warn=lines.append)
        active.activate()
        theirs = a.f = foreign(a.f)
        active.deactivate()
        assert a.f is theirs
        assert b.g is original
        (line,) = lines
        assert "'p'" in line
        assert f"{name}.a:f" in line
        assert f"{name}.a.f" in line
        assert a.f(1) == ("foreign", 1)  # what they call of ours leads to the original
        (status,) = active.statuses
        assert status.state is State.REVERTED
        assert "which stays" in status.reason


def test_a_patch_that_breaks_off_leaves_nothing(
    write: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is set, then an alias refuses: the target comes back."""
    name = write(
        a="def f(x): return x",
        frozen="""
            import sys, types
            from .a import f
            class Frozen(types.ModuleType):
                def __setattr__(self, key, value):
                    raise RuntimeError("frozen")
            sys.modules[__name__].__class__ = Frozen
        """,
    )
    importlib.import_module(f"{name}.frozen")
    before = snapshot(name)
    lines: list[str] = []
    with engine(make_patch(f"{name}.a:f", tag("w"), ("x",)), warn=lines.append) as active:
        assert states(active) == {"p": State.FAILED}
        assert_same(before, snapshot(name))
    assert "frozen" in lines[0]
    assert_same(before, snapshot(name))


def test_a_patch_whose_engine_is_deactivated_while_it_is_built_is_not_applied(
    a: Any,
) -> None:
    before = snapshot(a.__package__)

    def make(context: PatchContext) -> object:
        active.deactivate()
        return tag("w")(context)

    active = engine(make_patch(f"{a.__name__}:f", make, ("x",)))
    active.activate()
    assert a.f(1) == 1
    assert states(active) == {"p": State.REGISTERED}
    assert_same(before, snapshot(a.__package__))


def test_constructors(write: Writer) -> None:
    """``__new__`` is a staticmethod that nobody wrote as one; object's cannot be given back."""
    name = write(
        a="""
        class C:
            def __new__(cls, a): return super().__new__(cls)
            def __init__(self, a): self.a = a
        class D:
            def __init__(self, a): self.a = a
        """
    )
    a = importlib.import_module(f"{name}.a")
    before = snapshot(name)

    def make(context: PatchContext) -> object:
        return lambda cls, a: context.original(cls, a)

    def init(context: PatchContext) -> object:
        return lambda self, a: context.original(self, a + 1)

    lines: list[str] = []
    patches = [
        make_patch(f"{name}.a:C.__new__", make, ("cls", "a"), id="new"),
        make_patch(f"{name}.a:C.__init__", init, ("self", "a"), id="init"),
        make_patch(f"{name}.a:D.__new__", make, ("args", "kwargs"), id="inherited"),
    ]
    with engine(*patches, warn=lines.append) as active:
        assert [a.C(1).a, a.C(1).a] == [2, 2]
        assert states(active) == {
            "new": State.REACHED,
            "init": State.REACHED,
            "inherited": State.FAILED,
        }
    assert "patch __init__" in lines[0]
    assert (a.C(1).a, a.D(1).a) == (1, 1)
    assert_same(before, snapshot(name))


def test_an_attribute_function_is_rebound_where_it_was_copied(write: Writer) -> None:
    name = write(a="def f(): return 1", b="from .a import f", late="from .a import f")
    b = importlib.import_module(f"{name}.b")
    before = snapshot(name)

    def make(context: PatchContext) -> object:
        return lambda: 2

    with engine(make_patch(f"{name}.a:f", make, kind=Kind.ATTRIBUTE)) as active:
        late = importlib.import_module(f"{name}.late")
        assert (b.f(), late.f()) == (2, 2)
        assert active.statuses[0].aliases == (f"{name}.b:f",)
    assert late.f is b.f
    del sys.modules[f"{name}.late"]
    delattr(sys.modules[name], "late")
    assert_same(before, snapshot(name))
