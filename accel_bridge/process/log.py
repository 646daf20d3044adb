"""Lines to stderr, from rank 0 only, prefixed ``[accel_bridge]``; and the standard streams, which
may be closed, full, or read by somebody who went away.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import zlib
from collections.abc import Iterator
from typing import Final

from accel_bridge.errors import ERROR_PREFIX, BridgeError, printable

PREFIX: Final = "[accel_bridge]"
#: Variable that sets how much is said; its values are checked in ``environment.LOG``.
LOG_VARIABLE: Final = "ACCEL_BRIDGE_LOG"
#: Where it is set, what this process has said, for the processes that it starts: they do not
#: repeat it to the same place.
SAID: Final = "_ACCEL_BRIDGE_SAID"
#: What ran instead of a kernel, and why: said once each -> whether it names what is faster.
FALLBACKS: Final[dict[str, bool]] = {}
_said_by_parents: Final = frozenset(os.environ.get(SAID, "").split())


def say(line: str, *, anywhere: bool = False) -> None:
    """Say what was decided; silent with ``ACCEL_BRIDGE_LOG=quiet``.

    :param anywhere: on any rank, where rank 0 does not know it: the caller chooses one.
    """
    if _level() != "quiet":
        (_print if anywhere else _write)(line)


def fall_back(line: str, *, names_faster: bool = False) -> None:
    """Say what runs instead of a kernel, and why; a warning where it names what is faster."""
    if line not in FALLBACKS:
        FALLBACKS[line] = names_faster
        (warn if names_faster else say)(line)


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
    """Print ``text``, unless this is not rank 0."""
    if os.environ.get("RANK", "0") == "0":
        _print(text)


def _print(text: str) -> None:
    """Each line of ``text`` with the prefix."""
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


#: Exit status where the reader of a pipe has gone, as in `| head`.
READER_GONE: Final = 1
#: What stays of stdout when it is replaced.
_KEPT: Final = ("encoding", "line_buffering", "write_through")


class ReaderGone(Exception):
    """Who read what is printed has left."""


def open_streams() -> None:
    """Give stdin, stdout and stderr a place where they have none.

    The first file that is opened would take the number of a closed one, and what is printed, by
    a child process too, would end up in it. ``sys.stdin`` stays None: it is not an empty file.

    :raises BridgeError: stdout is closed, so nobody would see the answer.
    """
    stdout = sys.stdout
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
            if name != "stdin":
                setattr(sys, name, os.fdopen(number, "w", closefd=False))
    if stdout is None:
        raise BridgeError(
            "The standard output is closed.",
            evidence="file descriptor 1 is not open",
            next="send it to a file, or to /dev/null where nobody needs it",
        )
    if isinstance(stdout, io.TextIOWrapper):
        kept = {name: getattr(stdout, name) for name in _KEPT}
        sys.stdout = _Stdout(stdout.detach(), **kept)
        vars(sys)["__stdout__"] = sys.stdout  # the old one holds nothing any more
    # A name in an encoding that the terminal does not have is shown as an escape.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class _Stdout(io.TextIOWrapper):
    """Stdout whose failures have their own exception: argparse and others pass an OSError by."""

    def write(self, text: str) -> int:
        with _explained():
            return super().write(text)

    def flush(self) -> None:
        with _explained():
            super().flush()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn the failure of stdout into :class:`BridgeError`, or :class:`ReaderGone`."""
    try:
        yield
    except OSError as error:
        _drop(1)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise BridgeError(
            "What this command prints cannot be written.",
            evidence=str(error),
            next="free room where the standard output goes, or send it somewhere else",
        ) from error


def tell(text: str) -> None:
    """Print to standard error, where somebody can read it: a note must not end the work."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr)
        drop_unwritten()


def drop_unwritten() -> None:
    """Drop what stderr could not take: Python would try again at the end, and change the status."""
    if sys.stderr is not None:
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                _drop(sys.stderr.fileno())


def report(error: BridgeError) -> int:
    """Print an error as every command does; the exit status."""
    tell(f"{ERROR_PREFIX} {error}")
    return error.exit_code


def _drop(descriptor: int) -> None:
    """Let nothing more be written there: Python must not complain again when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
