"""Trip-wires: functions that notice their first call, then call the real one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from accel_bridge._journal import Journal
from accel_bridge.patching._verify import constructor


class Reach:
    """Whether a replacement was called, in plain attributes, which torch.compile can write."""

    def __init__(self) -> None:
        #: It was called.
        self.called = False
        #: The next call is to be noticed: the first one, while the patch is in place.
        self.armed = True


def tripwire(real: Callable[..., Any], reach: Reach, trip: Callable[[], None]) -> Any:
    """A function that calls ``trip`` and then ``real``, and looks like ``real``.

    What ``real`` returns is returned as it is, so coroutines, generators and context managers
    stay what they are. Whoever still holds the wire after its first call (where holders cannot be
    found, see :mod:`accel_bridge.patching._rebind`) pays one more Python call, some 0.15 µs, and
    cannot pickle it: its name leads to the real function by then.

    Where torch is loaded, a compiler that traces the wire sees no bookkeeping but one attribute
    written: nothing that would break its graph or make it compile twice.
    """
    compiling = _compiler_test()

    @functools.wraps(real)
    def wire(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            reach.called = True
        elif reach.armed:
            trip()
        return real(*args, **kwargs)

    return wire


def arm_class(cls: type, reach: Reach, trip: Callable[[], None]) -> Journal | None:
    """Put a trip-wire on the constructor of a class; the class stays the same object.

    ``trip`` must undo the journal that is returned. Instances made without the constructor
    (``copy``, ``pickle``, ``cls.__new__``) are not noticed.

    :returns: None where the class does not allow it (it is written in C).
    """
    declared = constructor(cls)
    by_new = declared is not None and cls.__init__ is object.__init__  # type: ignore[misc]
    real = declared if declared is not None else object.__init__
    name = "__new__" if by_new else "__init__"
    wire = tripwire(real, reach, trip)
    journal = Journal()
    try:
        journal.set(cls, name, staticmethod(wire) if by_new else wire)
    except TypeError:
        return None
    return journal


def stand_in(function: FunctionType) -> FunctionType:
    """A copy of a function that others hold too, so that it and they can be told apart."""
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = dict(function.__kwdefaults__ or {})
    copy.__annotations__ = dict(function.__annotations__)
    copy.__doc__ = function.__doc__
    copy.__dict__.update(function.__dict__)
    return copy


def rename(named: Any, module: str, qualname: str) -> None:
    """Name a function or class after the place where it stands, so that pickle finds it there."""
    named.__module__ = module
    named.__qualname__ = qualname
    named.__name__ = qualname.rpartition(".")[2]


def _compiler_test() -> Callable[[], bool]:
    """``torch.compiler.is_compiling`` where torch is loaded; torch is never imported for it."""
    compiler = sys.modules.get("torch.compiler")
    test: Callable[[], bool] = getattr(compiler, "is_compiling", _not_compiling)
    return test


def _not_compiling() -> bool:
    return False
