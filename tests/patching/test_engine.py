"""Skips, failures, warnings, strictness, composition."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

import pytest

from accel_bridge.errors import PatchError
from accel_bridge.patching import Kind, PatchContext, State

from .conftest import Writer
from .support import assert_same, engine, make_patch, snapshot, states, tag

SOURCE = """
def f(x, y=1):
    return x + y

def g(x):
    return x

FLAG = 1
"""


@pytest.fixture
def name(write: Writer) -> str:
    return write(a=SOURCE)


def test_states_from_registered_to_reverted(name: str) -> None:
    active = engine(make_patch(f"{name}.a:f", tag("w"), ("x", "y")))
    assert states(active) == {"p": State.REGISTERED}
    active.activate()
    assert states(active) == {"p": State.REGISTERED}
    a = importlib.import_module(f"{name}.a")
    assert states(active) == {"p": State.APPLIED}
    assert [s.patch.id for s in active.unreached()] == ["p"]
    assert a.f(1) == ("w", 2)
    assert states(active) == {"p": State.REACHED}
    assert active.unreached() == ()
    active.deactivate()
    assert states(active) == {"p": State.REVERTED}
    assert active.statuses[0].reached
    assert a.f(1) == 2
    active.activate()
    assert states(active) == {"p": State.APPLIED}
    assert not active.statuses[0].reached
    active.deactivate()


def test_make_gets_its_context(name: str) -> None:
    seen: list[PatchContext] = []
    host = object()

    def make(context: PatchContext) -> object:
        seen.append(context)
        return lambda x, y=1: 0

    patch = make_patch(f"{name}.a:f", make, ("x", "y"), kind=Kind.REPLACE)
    a = importlib.import_module(f"{name}.a")
    original = a.f
    with engine(patch, host=host):
        pass
    assert seen == [PatchContext(original, a, a, host, patch, inspect.signature(original))]


class TestSkips:
    """A skip leaves the target alone and says why."""

    @pytest.mark.parametrize(
        ("patch", "options", "reason"),
        [
            ({}, {"selection": lambda id: f"{id} was excluded"}, "p was excluded"),
            ({"skip_when": lambda host: f"no {host}"}, {"host": "npu"}, "no npu"),
            (
                {"kernels": ("rms_norm", "swiglu")},
                {"missing_kernel": {"swiglu": "no swiglu"}.get},
                "no swiglu",
            ),
            ({"kernels": ("rms_norm",)}, {}, "no backend provides the kernel 'rms_norm'"),
        ],
    )
    def test_silent(
        self, name: str, patch: dict[str, Any], options: dict[str, Any], reason: str
    ) -> None:
        a = importlib.import_module(f"{name}.a")
        original = a.f
        with engine(make_patch(f"{name}.a:f", tag("w"), ("x", "y"), **patch), **options) as active:
            (status,) = active.statuses
            assert (status.state, status.reason) == (State.SKIPPED, reason)
            assert a.f is original

    def test_a_patch_that_the_user_names_is_applied_all_the_same(self, name: str) -> None:
        a = importlib.import_module(f"{name}.a")
        original = a.f
        patch = make_patch(
            f"{name}.a:f", tag("w"), ("x", "y"), skip_when=lambda host: "a library does it"
        )
        with engine(patch, forced=lambda id: id == "p") as active:
            assert active.statuses[0].state is State.APPLIED
            assert a.f is not original

    def test_an_optional_target_may_be_missing(self, name: str) -> None:
        importlib.import_module(f"{name}.a")
        patch = make_patch(f"{name}.a:gone", tag("w"), ("x",), optional=True)
        with engine(patch) as active:
            (status,) = active.statuses
        assert status.state is State.SKIPPED
        assert status.reason == f"{name}.a has no gone in this version"

    @pytest.mark.parametrize("why", ["excluded", "failed"])
    def test_a_patch_goes_with_those_it_needs(self, name: str, why: str) -> None:
        a = importlib.import_module(f"{name}.a")
        parameters = ("gone",) if why == "failed" else ("x", "y")
        needed = make_patch(f"{name}.a:f", tag("needed"), parameters, id="needed")
        options = {
            "selection": lambda id: why if (id, why) == ("needed", "excluded") else None,
            "warn": lambda line: None,
        }
        flag = {"kind": Kind.ATTRIBUTE, "after": ("needed",), "id": "flag"}
        with engine(
            needed,
            make_patch(f"{name}.a:FLAG", lambda context: 2, needs=("needed",), **flag),
            **options,
        ) as active:
            assert a.FLAG == 1
            assert states(active)["flag"] is State.SKIPPED
            assert "it needs patch 'needed', which is not in place: " in active.statuses[1].reason
        with engine(needed, make_patch(f"{name}.a:FLAG", lambda context: 2, **flag), **options):
            assert a.FLAG == 2

    def test_patches_that_are_not_in_force_do_not_conflict(self, name: str) -> None:
        a = importlib.import_module(f"{name}.a")
        old = make_patch(f"{name}.a:f", tag("old"), ("x", "y"), id="old")
        new = make_patch(f"{name}.a:f", tag("new"), ("x", "y"), id="new")
        with engine(old, new, selection={"old": "no"}.get):
            assert a.f(1) == ("new", 2)
        with pytest.raises(PatchError, match="without a declared order"):
            engine(old, new)


def raising(context: PatchContext) -> object:
    raise ValueError("injected")


FAILURES: list[tuple[dict[str, Any], str]] = [
    ({"target": "gone"}, "has no gone"),
    ({"target": "FLAG", "parameters": ()}, "is a int, which cannot be called"),
    ({"parameters": ("x",), "kind": Kind.REPLACE}, r"\(x, y\) instead of \(x\)"),
    ({"parameters": ("y", "x"), "kind": Kind.REPLACE}, r"\(x, y\) instead of \(y, x\)"),
    ({"parameters": None, "kind": Kind.REPLACE}, "does not pin its parameters"),
    ({"parameters": ("x", "gone")}, r"has no parameter gone: its signature is \(x, y\)"),
    ({"make": raising}, "raised ValueError: injected"),
    ({"make": lambda context: 3}, "returned a int"),
    ({"make": lambda context: None}, "returned a NoneType"),
    ({"make": lambda context: context.original}, "returned the original"),
    ({"make": lambda context: staticmethod(lambda x, y=1: 0)}, "returned a staticmethod"),
    ({"make": lambda context: lambda x: 0}, "does not accept what callers pass"),
    ({"skip_when": lambda host: host.missing}, "raised AttributeError"),
]


@pytest.mark.parametrize(("change", "reason"), FAILURES)
@pytest.mark.parametrize("loaded", [True, False])
class TestFailures:
    """A failure is told with the id and what is lost; the other patches go on."""

    def patches(self, name: str, change: dict[str, Any]) -> list[Any]:
        wrong = {"target": "f", "make": tag("w"), "parameters": ("x", "y"), **change}
        target = f"{name}.a:{wrong.pop('target')}"
        return [
            make_patch(target, wrong.pop("make"), wrong.pop("parameters"), id="wrong", **wrong),
            make_patch(f"{name}.a:g", tag("fine"), ("x",), id="fine"),
        ]

    def test_default_warns(
        self, name: str, change: dict[str, Any], reason: str, loaded: bool
    ) -> None:
        if loaded:
            importlib.import_module(f"{name}.a")
        lines: list[str] = []
        with engine(*self.patches(name, change), warn=lines.append) as active:
            a = importlib.import_module(f"{name}.a")
            wrong, fine = active.statuses
            assert wrong.state is State.FAILED
            assert re.search(reason, wrong.reason)
            assert "Traceback" in wrong.error
            assert fine.state is State.APPLIED
            assert a.f(1) == 2
            assert a.g(1) == ("fine", 1)
        (line,) = lines
        assert "'wrong'" in line
        assert "the feature" in line

    def test_strict_stops(
        self, name: str, change: dict[str, Any], reason: str, loaded: bool
    ) -> None:
        if loaded:
            a = importlib.import_module(f"{name}.a")
            before = snapshot(name)
        active = engine(*self.patches(name, change), strict=True)

        def start() -> None:
            active.activate()
            importlib.import_module(f"{name}.a")

        with pytest.raises(PatchError, match=reason) as caught:
            start()
        assert caught.value.__cause__ is not None
        # Code that tolerates missing modules does not hide it.
        assert not isinstance(caught.value, ImportError)
        assert loaded or f"{name}.a" not in sys.modules
        assert "'wrong'" in str(caught.value)
        assert active.active is not loaded
        active.deactivate()
        if loaded:
            assert a.g(1) == 1
            assert_same(before, snapshot(name))


class TestComposition:
    def test_parameters_are_those_of_the_upstream_function(self, name: str) -> None:
        """The first patch hides them; the second is checked against what upstream wrote."""
        importlib.import_module(f"{name}.a")
        first = make_patch(
            f"{name}.a:f",
            lambda context: lambda *args, **kwargs: 0,
            ("x", "y"),
            id="first",
            kind=Kind.REPLACE,
        )
        second = make_patch(f"{name}.a:f", tag("b"), ("x", "y"), id="second", after=("first",))
        third = make_patch(
            f"{name}.a:f", tag("c"), ("args", "kwargs"), id="third", after=("second",)
        )
        with engine(first, second, third, warn=lambda line: None) as active:
            assert states(active) == {
                "first": State.APPLIED,
                "second": State.APPLIED,
                "third": State.FAILED,
            }

    def test_one_object_under_two_names_is_a_conflict(self, write: Writer) -> None:
        """Targets differ, the object does not; which one is first is not declared."""
        name = write(a="def f(x): return x", b="from .a import f as g")
        b = importlib.import_module(f"{name}.b")
        lines: list[str] = []
        one = make_patch(f"{name}.a:f", tag("one"), ("x",), id="one")
        two = make_patch(f"{name}.b:g", tag("two"), ("x",), id="two")
        with engine(one, two, warn=lines.append) as active:
            assert states(active) == {"one": State.APPLIED, "two": State.FAILED}
            assert b.g(1) == ("one", 1)
        assert "'one'" in lines[0]
        assert "'two'" in lines[0]
