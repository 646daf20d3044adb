"""Arguments are found by the parameter that the wrapped function declares."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from accel_bridge.patching import Argument, Kind, PatchContext, State, after, around, before

from .conftest import Writer
from .support import engine, make_patch, states


def declared(a: Any, b: Any = 2, *, c: Any = 3) -> None: ...


def argument(name: str | tuple[str, ...]) -> Argument:
    return Argument.find(inspect.signature(declared), name)


def test_a_wrapper_reads_what_it_lists_and_forwards_the_rest(write: Writer) -> None:
    """Upstream may add parameters, and rename one whose names are all listed."""
    name = write(a="def f(x, groups=1, *, later=2): return x, groups, later")
    a = importlib.import_module(f"{name}.a")

    def make(context: PatchContext) -> object:
        groups = context.argument(("process_groups", "groups"))

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            more = groups.put(args, kwargs, groups.get(args, kwargs) + 1)
            return context.original(*more[0], **more[1])

        return wrapper

    patch = make_patch(f"{name}.a:f", make, (("process_groups", "groups"),))
    with engine(patch):
        assert a.f(0) == (0, 2, 2)
        assert a.f(0, 5, later=9) == (0, 6, 9)
        assert a.f(x=0, groups=7) == (0, 8, 2)


def test_an_argument_that_is_not_listed_is_refused(write: Writer) -> None:
    name = write(a="def f(x): return x")
    importlib.import_module(f"{name}.a")
    lines: list[str] = []

    def make(context: PatchContext) -> object:
        return context.argument("x")

    patch = make_patch(f"{name}.a:f", make, (), kind=Kind.WRAP)
    with engine(patch, warn=lines.append) as active:
        assert states(active) == {"p": State.FAILED}
    assert "does not list in `uses`" in lines[0]


def test_something_before_and_after_a_call(write: Writer) -> None:
    """Actions get the values in ``uses``; the call and its result are passed on as they are."""
    name = write(a="def f(a, b=2, **rest): return [a, b, *rest]")
    a = importlib.import_module(f"{name}.a")
    seen: list[Any] = []

    def first(context: PatchContext, b: int, a: int) -> None:
        seen.append((context.patch.id, a, b))

    def last(context: PatchContext, result: Any, b: int) -> None:
        seen.append((context.patch.id, list(result), b))

    early = make_patch(f"{name}.a:f", before(first), ("b", "a"), id="early")
    late = make_patch(f"{name}.a:f", after(last), ("b",), id="late", after=("early",))
    with engine(early, late):
        assert a.f(1, c=3) == [1, 2, "c"]
    assert seen == [("early", 1, 2), ("late", [1, 2, "c"], 2)]


def test_something_in_place_of_a_call(write: Writer) -> None:
    """The original is called as it was, with other values, or not at all."""
    name = write(a="def f(groups, b=2, *, c=3): return [groups, b, c]")
    a = importlib.import_module(f"{name}.a")

    def instead(context: PatchContext, call: Callable[..., Any], of: int, c: int) -> Any:
        if of == 0:
            return [context.patch.id]
        return call() if of == 1 else call(process_groups=of * 10, c=c + 1)

    patch = make_patch(f"{name}.a:f", around(instead), (("process_groups", "groups"), "c"))
    with engine(patch):
        assert a.f(0) == ["p"]
        assert a.f(1, 5) == [1, 5, 3]
        assert a.f(2) == [20, 2, 4]
        assert a.f(b=7, c=8, groups=3) == [30, 7, 9]
        assert list(inspect.signature(a.f).parameters) == ["groups", "b", "c"]
