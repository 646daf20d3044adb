"""Calls are counted by one wrapper, which stays and is told from everything else."""

from __future__ import annotations

import functools
import importlib
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from accel_bridge.patching import Kind, PatchContext, State

from .conftest import Writer
from .support import engine, make_patch, states, tag, wrap_f


def public(x: int, y: int = 5, *, z: int = 0) -> int:
    """A function that others know by its own name."""
    return x * 100 + y


class Public:
    def __init__(self, a: int = 0) -> None:
        self.a = a


def replace(new: object) -> Callable[[PatchContext], object]:
    return lambda context: new


def test_one_wrapper_stands_everywhere_and_goes_from_everywhere(write: Writer) -> None:
    name = write(
        a="def f(x): return x\nclass C:\n    act = staticmethod(f)",
        b="from .a import f as g",
        late="from .a import f as h\nclass L:\n    act = staticmethod(h)",
    )
    b = importlib.import_module(f"{name}.b")
    with engine(
        make_patch(f"{name}.a:f", replace(lambda x: x + 1), ("x",), kind=Kind.REPLACE)
    ) as active:
        a = importlib.import_module(f"{name}.a")
        late = importlib.import_module(f"{name}.late")
        wrapper = a.f
        held = functools.partial(wrapper, 1)  # a holder that cannot be found
        assert states(active) == {"p": State.APPLIED}
        for _ in range(2):
            assert b.g(1) == held() == 2
            assert b.g is a.f is late.h is wrapper
            assert vars(a.C)["act"].__func__ is vars(late.L)["act"].__func__ is wrapper
        assert states(active) == {"p": State.REACHED}
    assert b.g is a.f is late.h is vars(late.L)["act"].__func__
    assert b.g is not wrapper
    assert b.g(1) == 1
    assert held() == 1  # whoever cannot be found reaches the original


def test_the_wrapper_looks_like_the_target(write: Writer) -> None:
    name = write(a="def f(x: int, y: int = 1) -> int:\n    'What f does.'\n    return x")
    a = importlib.import_module(f"{name}.a")
    original = a.f
    with engine(make_patch(f"{name}.a:f", tag("w"), ("x", "y"))):
        for _ in range(2):
            assert a.f is not original
            assert inspect.signature(a.f) == inspect.signature(original)
            assert (a.f.__module__, a.f.__qualname__) == (f"{name}.a", "f")
            assert a.f.__doc__ == "What f does."
            assert pickle.loads(pickle.dumps(a.f)) is a.f
            a.f(1)


@pytest.mark.parametrize("new", [public, lambda x, y=5, *, z=0: x * 100 + y])
def test_a_replacement_is_picklable_and_public_ones_keep_their_name(
    write: Writer, new: Callable[..., int]
) -> None:
    name = write(a="def f(x, y=1): return x")
    a = importlib.import_module(f"{name}.a")
    with engine(make_patch(f"{name}.a:f", replace(new), ("x", "y"), kind=Kind.REPLACE)):
        for _ in range(2):
            assert pickle.loads(pickle.dumps(a.f)) is a.f
            assert a.f(1) == 105
    assert (public.__module__, public.__qualname__) == (__name__, "public")
    assert pickle.loads(pickle.dumps(public)) is public


def test_a_method_needs_something_that_binds(write: Writer) -> None:
    name = write(a="class C:\n    def m(self): ...")
    importlib.import_module(f"{name}.a")
    lines: list[str] = []
    partial = functools.partial(lambda self: 1)
    patch = make_patch(f"{name}.a:C.m", replace(partial), ("self",), kind=Kind.REPLACE)
    with engine(patch, warn=lines.append) as active:
        assert states(active) == {"p": State.FAILED}
    assert "does not bind" in lines[0]


def test_a_call_does_not_wait_for_the_lock(a: Any) -> None:
    """Nor for one that was held by a thread that does not exist after a fork."""
    with wrap_f(a) as active:
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with active._lock:
                held.set()
                done.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(30)
        assert a.f(1) == ("w", 1)
        done.set()
        thread.join(30)
        assert states(active) == {"p": State.REACHED}


CLASSES = """
from typing import NamedTuple
class D:
    def __init__(self, a=0): self.a = a
class N(NamedTuple):
    a: int = 0
class Plain: pass
"""


@pytest.mark.parametrize(
    ("target", "parameters"), [("D", ("self", "a")), ("N", ("_cls", "a")), ("Plain", ("self",))]
)
def test_a_class_is_reached_when_first_instantiated(
    write: Writer, target: str, parameters: tuple[str, ...]
) -> None:
    name = write(a=CLASSES)
    a = importlib.import_module(f"{name}.a")
    made: list[type] = []

    def make(context: PatchContext) -> object:
        made.append(type("New", (context.original,), {}))
        made[0].__qualname__ = "make.<locals>.New"
        return made[0]

    original = getattr(a, target)
    with engine(make_patch(f"{name}.a:{target}", make, parameters, kind=Kind.REPLACE)) as active:
        cls = getattr(a, target)
        assert issubclass(cls, made[0])
        assert not {"__init__", "__new__"} & vars(made[0]).keys()
        assert states(active) == {"p": State.APPLIED}
        assert isinstance(cls(), cls)
        assert states(active) == {"p": State.REACHED}
        assert type(pickle.loads(pickle.dumps(cls()))) is cls
        if target != "Plain":
            assert cls(4).a == 4
        with pytest.raises(TypeError):
            cls(1, 2, 3)
    assert getattr(a, target) is original


def test_a_subclass_reaches_it_too_and_a_shared_class_is_left_alone(write: Writer) -> None:
    name = write(a=CLASSES)
    a = importlib.import_module(f"{name}.a")
    own_init = vars(Public)["__init__"]
    patch = make_patch(f"{name}.a:D", replace(Public), ("self", "a"), kind=Kind.REPLACE)
    with engine(patch) as active:

        class Sub(a.D):  # type: ignore[misc, name-defined]
            pass

        assert Sub(3).a == 3
        assert states(active) == {"p": State.REACHED}
        assert vars(Public)["__init__"] is own_init


def test_a_class_that_nobody_may_derive_from_is_not_counted(write: Writer) -> None:
    name = write(a="class D:\n    def __init__(self, *args, **kwargs): ...")
    a = importlib.import_module(f"{name}.a")

    class Final:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __init_subclass__(cls) -> None:
            raise TypeError("final")

    patch = make_patch(f"{name}.a:D", replace(Final), ("self", "args", "kwargs"), kind=Kind.REPLACE)
    with engine(patch) as active:
        assert a.D is Final
        a.D()
        (status,) = active.statuses
        assert (status.state, status.counted, status.reason) == (
            State.APPLIED,
            False,
            "not counted",
        )
        assert active.unreached() == ()
