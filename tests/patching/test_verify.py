from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from accel_bridge.patching.target import Refusal
from accel_bridge.patching.verify import refused_call, signature


def refused(original: Callable[..., Any], new: Callable[..., Any], bound: bool = False) -> Any:
    return refused_call(inspect.signature(original), inspect.signature(new), bound=bound)


@pytest.mark.parametrize(
    ("original", "new"),
    [
        (lambda a, b=1: 0, lambda a, b=1: 0),
        (lambda a, b=1: 0, lambda a, b=2, c=3: 0),
        (lambda a, b: 0, lambda *args, **kwargs: 0),
        (lambda a, /: 0, lambda other: 0),
        (lambda *, a: 0, lambda a: 0),
        (lambda a, *, b=1: 0, lambda a, **kwargs: 0),
        (lambda a, *args: 0, lambda a, *rest: 0),
        (lambda a: 0, lambda first, /, **kwargs: 0),
    ],
)
def test_calls_that_stay_possible(original: Callable[..., Any], new: Callable[..., Any]) -> None:
    assert refused(original, new) is None


@pytest.mark.parametrize(
    ("original", "new", "reason"),
    [
        (lambda a, b: 0, lambda a: 0, "b as positional argument 2"),
        (lambda a: 0, lambda b: 0, "a by its name"),
        (lambda a, b: 0, lambda b, a: 0, "a as positional argument 1: b is there"),
        (lambda a, b=1: 0, lambda a, b: 0, "a call without b"),
        (lambda a: 0, lambda a, b: 0, "a call without b, which the original does not have"),
        (lambda a: 0, lambda a, *, b: 0, "a call without b, which the original does not have"),
        (lambda a: 0, lambda *args: 0, "a by its name"),
        (lambda a: 0, lambda *, a: 0, "a as positional argument 1"),
        (lambda *args: 0, lambda a=1: 0, "*args"),
        (lambda **kwargs: 0, lambda a=1: 0, "**kwargs"),
    ],
)
def test_calls_that_break(
    original: Callable[..., Any], new: Callable[..., Any], reason: str
) -> None:
    assert refused(original, new) == reason


def test_nobody_passes_self_by_name() -> None:
    assert refused(lambda self, x: 0, lambda module, x: 0, bound=True) is None
    assert refused(lambda self, x: 0, lambda module, x: 0) == "self by its name"


def test_signature_of_a_class_is_its_constructor() -> None:
    class WithNew:
        def __new__(cls, a: int) -> WithNew:
            return super().__new__(cls)

    class Plain:
        pass

    class Named(NamedTuple):
        a: int

    assert tuple(signature(WithNew).parameters) == ("cls", "a")
    assert tuple(signature(Plain).parameters) == ("self",)
    assert tuple(signature(Named).parameters) == ("_cls", "a")


def test_signature_looks_behind_decorators_or_not() -> None:
    def inner(a: int) -> None: ...

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> None: ...

    assert tuple(signature(outer).parameters) == ("a",)
    assert tuple(signature(outer, follow_wrapped=False).parameters) == ("args", "kwargs")


def test_unreadable_signature_is_refused() -> None:
    def odd() -> None: ...

    odd.__signature__ = "none"  # type: ignore[attr-defined]
    with pytest.raises(Refusal, match="cannot be read"):
        signature(odd)
