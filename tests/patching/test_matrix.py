"""Import, patch and unpatch in every order; afterwards every object is the original one."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accel_bridge.patching import Kind, Patch, PatchContext, PatchEngine, State, target

from .conftest import Writer
from .support import assert_same, engine, make_patch, snapshot, states, tag

A = """
import functools

def f(x, y=1):
    return x + y

class C:
    def m(self, x):
        return x
    __call__ = m

    @classmethod
    def k(cls, x):
        return x

    @staticmethod
    def s(x):
        return x

    @property
    def p(self):
        return 1

    @functools.cached_property
    def lazy(self):
        return 1

    act = staticmethod(f)

class Child(C):
    pass

class D:
    def __init__(self, a=0):
        self.a = a

VALUE = 257
HELPER = None
"""
B = """
from . import a as module
from .a import f as g, C, D as E, VALUE, HELPER

class Holder:
    act = staticmethod(g)
    kind = E
"""


def subclass(context: PatchContext) -> object:
    class Patched(context.original):  # type: ignore[misc, name-defined]
        patched = True

    return Patched


def patches(name: str) -> list[Patch]:
    a = f"{name}.a"
    return [
        # The order is the declared one, not this.
        make_patch(f"{a}:f", tag("ff"), ("x", "y"), id="ff", after=("f",)),
        make_patch(f"{a}:f", tag("f"), ("x", "y"), id="f"),
        make_patch(f"{a}:C.m", tag("m"), ("self", "x"), id="m"),
        make_patch(f"{a}:C.k", tag("k"), ("cls", "x"), id="k"),
        make_patch(f"{a}:C.s", tag("s"), ("x",), id="s"),
        make_patch(f"{a}:C.p", tag("p"), ("self",), id="p"),
        make_patch(f"{a}:C.lazy", tag("lazy"), ("self",), id="lazy"),
        make_patch(f"{a}:Child.s", tag("child"), ("x",), id="child", after=("s",)),
        make_patch(f"{a}:D", subclass, ("self", "a"), id="D", kind=Kind.REPLACE),
        make_patch(f"{a}:VALUE", lambda context: 258, id="VALUE", kind=Kind.ATTRIBUTE),
        make_patch(f"{a}:HELPER", lambda context: len, id="HELPER", kind=Kind.ATTRIBUTE),
    ]


def observe(b: ModuleType) -> dict[str, Any]:
    a = b.module
    return {
        "f": a.f(1),
        "g": b.g(1),
        "act": a.C.act(1),
        "holder": b.Holder.act(1),
        "m": a.C().m(1),
        "call": a.C()(1),
        "k": a.C.k(1),
        "s": a.C.s(1),
        "child": a.Child.s(1),
        "p": a.C().p,
        "lazy": a.C().lazy,
        "D": getattr(a.D(), "patched", False),
        "E": getattr(b.E(), "patched", False),
        "kind": getattr(b.Holder.kind(), "patched", False),
        "VALUE": a.VALUE,
        "HELPER": a.HELPER,
    }


ff = ("ff", ("f", 2))
PATCHED = {
    "f": ff,
    "g": ff,
    "act": ff,
    "holder": ff,
    "m": ("m", 1),
    "call": ("m", 1),
    "k": ("k", 1),
    "s": ("s", 1),
    "child": ("child", ("s", 1)),
    "p": ("p", 1),
    "lazy": ("lazy", 1),
    "D": True,
    "E": True,
    "kind": True,
    "VALUE": 258,
    "HELPER": len,
}
PLAIN = {
    **dict.fromkeys(["f", "g", "act", "holder"], 2),
    **dict.fromkeys(["m", "call", "k", "s", "child", "p", "lazy"], 1),
    "D": False,
    "E": False,
    "kind": False,
    "VALUE": 257,
    "HELPER": None,
}


@pytest.fixture
def name(write: Writer) -> str:
    return write(a=A, b=B)


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{name}.b")


def assert_original(name: str) -> None:
    """No object of ours is left, whatever was imported when."""
    b = load(name)
    assert observe(b) == PLAIN
    for place, value in snapshot(name).items():
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        module = getattr(inner, "__code__", None)
        assert module is None or "tests/patching" not in module.co_filename, place
        assert module is None or "accel_bridge" not in module.co_filename, place
    assert b.g is b.module.f
    assert vars(b.Holder)["act"].__func__ is b.module.f
    assert b.E is b.Holder.kind is b.module.D
    assert vars(b.C)["__call__"] is vars(b.C)["m"]
    assert "s" not in vars(b.module.Child)
    assert b.VALUE == b.module.VALUE


def test_import_patch(name: str) -> None:
    b = load(name)
    before = snapshot(name)
    assert observe(b) == PLAIN
    before = snapshot(name)
    with engine(*patches(name)) as active:
        assert observe(b) == PATCHED
        assert observe(b) == PATCHED
        uncounted = {"VALUE", "HELPER"}
        assert {id for id, state in states(active).items() if state is State.REACHED} == (
            set(states(active)) - uncounted
        )
        assert b.VALUE == 257  # a copy of plain data cannot be told from any other 257
    assert_same(before, snapshot(name))
    assert_original(name)


def test_patch_import(name: str) -> None:
    with engine(*patches(name)):
        b = load(name)
        assert observe(b) == PATCHED
        assert b.VALUE == 258
    b.VALUE, b.HELPER = b.module.VALUE, b.module.HELPER  # copies of data are the one thing left
    assert_original(name)


STEPS = [
    "import a",
    "import b",
    "import late",
    "activate",
    "deactivate",
    "call",
    "reload",
    "forget",
]
LATE = "from .a import f, C, D\nfrom .b import g\nclass L:\n    act = staticmethod(f)"


class Alone:
    """``sys`` for the search for copies: the modules of one package.

    Where other tests have imported torch and Megatron, the search looks at 160,000 names in every
    step; test_rebind.py and the end-to-end tests have those.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    @property
    def modules(self) -> dict[str, ModuleType]:
        own = sys.modules.items()
        return {name: module for name, module in own if name.partition(".")[0] == self._package}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.sampled_from(STEPS), max_size=12))
def test_any_order_ends_with_the_originals(write: Writer, steps: list[str]) -> None:
    name = write(a=A, b=B, late=LATE)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(target, "sys", Alone(name))
        _run(name, steps)


def _run(name: str, steps: list[str]) -> None:
    active = engine(*[p for p in patches(name) if p.kind is not Kind.ATTRIBUTE])
    reference: dict[type, tuple[object, object]] = {}
    for step in steps:
        _step(step, name, active)
        a = sys.modules.get(f"{name}.a")
        if a is not None and not active.active:
            # What is seen while nothing is patched must be seen again after every later undo.
            seen = (a.f, a.D)
            assert reference.setdefault(a.C, seen) == seen
            assert a.f(1) == 2
        elif a is not None:
            assert a.f(1) == ff
            assert a.C().m(1) == ("m", 1)
    active.deactivate()
    a = importlib.import_module(f"{name}.a")
    assert a.f.__code__.co_filename == a.__file__
    for place, value in snapshot(name).items():
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        code = getattr(inner, "__code__", None)
        assert (
            code is None
            or code.co_filename.startswith(str(a.__file__)[: -len("a.py")])
            or ("functools" in code.co_filename)
        ), place
    for loaded in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[loaded]


def _step(step: str, name: str, active: PatchEngine) -> None:
    a = sys.modules.get(f"{name}.a")
    if step.startswith("import "):
        importlib.import_module(f"{name}.{step.removeprefix('import ')}")
    elif step == "activate":
        active.activate()
    elif step == "deactivate":
        active.deactivate()
    elif a is not None and step == "call":
        a.f(1), a.C().m(1), a.C.k(1), a.C.s(1), a.D()
    elif a is not None and step == "reload":
        importlib.reload(a)
    elif a is not None and step == "forget":
        del sys.modules[f"{name}.a"]
