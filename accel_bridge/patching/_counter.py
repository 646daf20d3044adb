"""Counting: one small, permanent wrapper for each patched callable."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import new_class
from typing import Any

from accel_bridge.patching._verify import constructor


class Reach:
    """Where a wrapper leads and whether it was called, in attributes that torch.compile can write.

    :param function: what the wrapper calls: the replacement, and the original after the undo.
        Holders that no search finds (default arguments, tables) then reach the original too.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.called = False


def counted(new: Callable[..., Any], reach: Reach) -> Callable[..., Any]:
    """A function that looks like ``new``, notes that it was called, and calls ``reach.function``.

    The result is passed through unchanged: coroutines and generators stay what they are.
    """

    @functools.wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        reach.called = True
        # Without keywords a call costs a third less.
        return reach.function(*args, **kwargs) if kwargs else reach.function(*args)

    return call


def counted_class(new: type, reach: Reach) -> type | None:
    """A subclass of ``new`` that notes its instantiation; None if ``new`` cannot be subclassed."""
    real = constructor(new) or object.__init__
    by_new = real is not object.__init__ and new.__init__ is object.__init__  # type: ignore[misc]

    @functools.wraps(real)
    def construct(*args: Any, **kwargs: Any) -> Any:
        reach.called = True
        return real(*args, **kwargs)

    member = {"__new__": staticmethod(construct)} if by_new else {"__init__": construct}
    body = {"__slots__": (), "__doc__": new.__doc__, **member}
    try:
        return new_class(new.__name__, (new,), exec_body=lambda namespace: namespace.update(body))
    except TypeError:
        return None


def rename(named: Any, module: str, qualname: str) -> None:
    """Name a function or class after the place where it stands, so that pickle finds it there."""
    named.__module__ = module
    named.__qualname__ = qualname
    named.__name__ = qualname.rpartition(".")[2]
