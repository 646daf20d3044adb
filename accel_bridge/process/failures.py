"""How a process that runs a script ends when something fails: three parts, once."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final, NoReturn

from accel_bridge.errors import ERROR_PREFIX, BridgeError
from accel_bridge.process import cache
from accel_bridge.process.log import is_debug

#: Seconds that the other ranks of a machine wait for the first to say the same. Ranks that fail
#: alike are ended by torchrun meanwhile; one that failed alone then speaks for itself.
PATIENCE: Final = 4.0

_ATTRIBUTE: Final = "__accel_bridge__"
#: Gives the meaning of an error that nobody has caught; None where it does not know it.
Explainer = Callable[[BaseException], BridgeError | None]
_explainers: list[Explainer] = [cache.explain]
#: The text of an error whose type is another library's, and which says the three parts.
_IN_PARTS: Final = re.compile(r"(.+)((?:\n  evidence: .+)+)\n  next:     (.+)")
_reported = False


def has_reported() -> bool:
    """Whether this process ends with an error that was shown."""
    return _reported


def explain(error: BaseException, explanation: BridgeError) -> None:
    """Keep what an error means with it; the error itself stays what it is."""
    setattr(error, _ATTRIBUTE, explanation)


def explain_uncaught(explainer: Explainer) -> None:
    """Ask ``explainer`` about every error that would end this process; once for each of them."""
    if explainer not in _explainers:
        _explainers.append(explainer)


def explanation(error: BaseException) -> BridgeError | None:
    """What an error means: itself in three parts, or what :func:`explain` kept with it."""
    if isinstance(error, BridgeError):
        return error
    return getattr(error, _ATTRIBUTE, None) or _of_text(error)


def _of_text(error: BaseException) -> BridgeError | None:
    """The three parts in the message of a shim's error, whose type is the library's own."""
    try:
        found = _IN_PARTS.fullmatch(str(error))
    except Exception:  # an error of somebody's own that cannot be shown
        return None
    if found is None:
        return None
    evidence = [line.removeprefix("  evidence: ") for line in found[2].splitlines() if line]
    return BridgeError(found[1], evidence=evidence, next=found[3])


def of_uncaught(error: BaseException) -> BridgeError | None:
    """What an error means that ends this process; None where nobody knows."""
    told = explanation(error)
    if told is None and isinstance(error, MemoryError):
        told = BridgeError(
            "This machine's memory is full, or a limit of it is reached.",
            evidence=f"{type(error).__name__}: {error}".rstrip(": "),
            next="a smaller input, fewer workers or a smaller model; ACCEL_BRIDGE_LOG=debug shows "
            "where",
        )
    answers = (explainer(error) for explainer in _explainers)
    return told or next((answer for answer in answers if answer is not None), None)


def report(error: BaseException, told: BridgeError) -> int:
    """Print ``told``, with the traceback of ``error`` when details are wanted; the exit status."""
    global _reported
    _reported = True
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader has gone, or its disk is full
            stream.flush()
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(PATIENCE)
    if is_debug():
        traceback.print_exception(error)
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    where = f"rank {os.environ.get('RANK', '?')}: " if several else ""
    print(f"{ERROR_PREFIX} {where}{told}", file=sys.stderr, flush=True)
    return told.exit_code


def end_with(error: BridgeError) -> NoReturn:
    """End the process with an error that an exit function meets, after all other exit functions.

    Python would print a traceback and end with status 0.
    """
    status = report(error, error)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def show_uncaught() -> None:
    """Let errors that are explained end the program with their three parts."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        told = of_uncaught(error)
        if told is None:
            previous(kind, error, trace)
        else:
            report(error, told)

    sys.excepthook = hook
