"""Counting: one small, permanent wrapper for each patched callable."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import new_class
from typing import Any

from accel_bridge.patching.verify import constructor


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
    reach.function = constructor(new) or object.__init__
    name = "__new__" if reach.function is new.__new__ else "__init__"
    body = {"__slots__": (), "__doc__": new.__doc__, name: counted(reach.function, reach)}
    with contextlib.suppress(TypeError):
        return new_class(new.__name__, (new,), exec_body=lambda namespace: namespace.update(body))
    return None
