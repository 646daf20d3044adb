"""Calls are counted by one wrapper, which stays and is told from everything else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import inspect
import multiprocessing
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


def test_whoever_holds_a_public_replacement_keeps_it_after_the_undo(write: Writer) -> None:
    name = write(a="def f(x, y=1): return x", user=f"from {__name__} import public", b="")
    a = importlib.import_module(f"{name}.a")
    b = importlib.import_module(f"{name}.b")
    with engine(make_patch(f"{name}.a:f", replace(public), ("x", "y"), kind=Kind.REPLACE)):
        assert a.f(1) == 105
        user = importlib.import_module(f"{name}.user")
        b.copied = a.f
    assert user.public is public
    assert b.copied is a.f
    assert a.f(1) == 1


def test_other_callables_can_replace_functions(a: Any) -> None:
    original = a.f
    partial = functools.partial(lambda y, x: (y, x), 7)
    with engine(
        make_patch(f"{a.__name__}:f", replace(partial), ("x",), kind=Kind.REPLACE)
    ) as active:
        assert a.f(x=1) == (7, 1)
        assert states(active) == {"p": State.REACHED}
    assert a.f is original


def test_a_method_needs_something_that_binds(write: Writer) -> None:
    name = write(a="class C:\n    def m(self): ...")
    importlib.import_module(f"{name}.a")
    lines: list[str] = []
    partial = functools.partial(lambda self: 1)
    patch = make_patch(f"{name}.a:C.m", replace(partial), ("self",), kind=Kind.REPLACE)
    with engine(patch, warn=lines.append) as active:
        assert states(active) == {"p": State.FAILED}
    assert "does not bind" in lines[0]


ASYNC = """
import contextlib

async def coroutine(x): return x
def generator(x): yield x
@contextlib.contextmanager
def manager(x): yield x
"""


def test_coroutines_generators_and_managers_stay_what_they_are(write: Writer) -> None:
    name = write(a=ASYNC)
    a = importlib.import_module(f"{name}.a")

    async def coroutine(x: int) -> int:
        return x + 1

    def generator(x: int) -> Any:
        yield x + 1

    new = [coroutine, generator, contextlib.contextmanager(generator)]
    patches = [
        make_patch(f"{name}.a:{target}", replace(n), ("x",), id=target, kind=Kind.REPLACE)
        for target, n in zip(["coroutine", "generator", "manager"], new, strict=True)
    ]
    with engine(*patches) as active:
        for _ in range(2):
            assert asyncio.run(a.coroutine(1)) == 2
            assert list(a.generator(1)) == [2]
            with a.manager(1) as value:
                assert value == 2
        assert set(states(active).values()) == {State.REACHED}


def test_forked_workers_call_a_patched_function_sent_to_them(a: Any) -> None:
    with wrap_f(a) as active:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.map(a.f, [1, 2]) == [("w", 1), ("w", 2)]
        assert states(active) == {"p": State.APPLIED}  # the parent called nothing


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


def test_many_threads_make_the_first_call(a: Any) -> None:
    original = a.f
    start = threading.Barrier(8)
    results: list[object] = []

    def work() -> None:
        start.wait()
        results.extend(a.f(1) for _ in range(50))

    with wrap_f(a) as active:
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert states(active) == {"p": State.REACHED}
    assert results == [("w", 1)] * 400
    assert a.f is original


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
