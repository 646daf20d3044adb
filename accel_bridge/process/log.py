"""Lines to stderr, from rank 0 only, prefixed ``[accel_bridge]``."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import zlib
from typing import Final

from accel_bridge.errors import printable

PREFIX: Final = "[accel_bridge]"
#: Variable that sets how much is said; its values are checked in ``_environment``.
LOG_VARIABLE: Final = "ACCEL_BRIDGE_LOG"
#: Where it is set, what this process has said, for the processes that it starts: they do not
#: repeat it to the same place.
SAID: Final = "_ACCEL_BRIDGE_SAID"
_said_by_parents: Final = frozenset(os.environ.get(SAID, "").split())


def say(line: str) -> None:
    """Say what was decided; silent with ``ACCEL_BRIDGE_LOG=quiet``."""
    if _level() != "quiet":
        _write(line)


def warn(line: str) -> None:
    """Say what will not work as the user may expect; shown at every level."""
    _write(f"warning: {line}")


@functools.cache
def warn_once(line: str) -> None:
    """Warn, unless this process has done so in the same words."""
    warn(line)


def debug(line: str) -> None:
    """Say a detail; shown with ``ACCEL_BRIDGE_LOG=debug`` only."""
    if _level() == "debug":
        _write(line)


def is_debug() -> bool:
    """Whether details and tracebacks are wanted."""
    return _level() == "debug"


def _level() -> str:
    return os.environ.get(LOG_VARIABLE, "").strip().lower()


def _write(text: str) -> None:
    """Write each line of ``text`` with the prefix, unless this is not rank 0."""
    if os.environ.get("RANK", "0") != "0":
        return
    # A log that is closed or full stops no training.
    with contextlib.suppress(OSError, ValueError):
        if SAID in os.environ:
            mark = _mark(text)
            if mark in _said_by_parents:
                return
            os.environ[SAID] += f" {mark}"
        lines = [f"{PREFIX} {printable(line, keep=chr(9))}" for line in text.splitlines()]
        print("\n".join(lines), file=sys.stderr, flush=True)


def _mark(text: str) -> str:
    """Short, for what is said and the file, terminal or pipe that it is written to."""
    try:
        found = os.fstat(sys.stderr.fileno())
        place = f"{found.st_dev} {found.st_ino}"
    except (AttributeError, OSError, ValueError):
        place = ""  # it is not a file
    return f"{zlib.crc32(f'{text} {place}'.encode(errors='replace')):x}"
