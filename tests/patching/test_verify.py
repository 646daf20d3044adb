from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from accel_bridge.patching.target import Refusal
from accel_bridge.patching.verify import refused_call, signature


def refused(original: Callable[..., Any], new: Callable[..., Any], bound: bool = False) -> Any:
    return refused_call(inspect.signature(original), inspect.signature(new), bound=bound)


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


def test_unreadable_signature_is_refused() -> None:
    def odd() -> None: ...

    odd.__signature__ = "none"  # type: ignore[attr-defined]
    with pytest.raises(Refusal, match="cannot be read"):
        signature(odd)
