"""The standard streams of a program: closed, full, or read by somebody who has left.

A program calls :func:`open_streams` first. From then on ``print`` raises :class:`StreamError` or
:class:`ReaderGone` where standard output fails, so a status of 0 means that the answer arrived.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Final

from accel_bridge.errors import ERROR_PREFIX, BridgeError

#: Exit status where the reader of a pipe has gone, as in `| head`.
READER_GONE: Final = 1
#: What stays of stdout when it is replaced.
_KEPT: Final = ("encoding", "line_buffering", "write_through")


class ReaderGone(Exception):
    """Who read what is printed has left."""


class StreamError(BridgeError):
    """What a command prints cannot be written."""


def open_streams() -> None:
    """Give stdin, stdout and stderr a place where they have none.

    The first file that is opened would take the number of a closed one, and what is printed, by
    a child process too, would end up in it. ``sys.stdin`` stays None: it is not an empty file.

    :raises StreamError: stdout is closed, so nobody would see the answer.
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
        raise StreamError(
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
    """Stdout whose failure is told from other failures: argparse and others pass an OSError by."""

    def write(self, text: str) -> int:
        with _explained():
            return super().write(text)

    def flush(self) -> None:
        with _explained():
            super().flush()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn the failure of stdout into :class:`StreamError`, or :class:`ReaderGone`."""
    try:
        yield
    except OSError as error:
        _drop(1)
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise StreamError(
            "What this command prints cannot be written.",
            evidence=str(error),
            next="free room where the standard output goes, or send it somewhere else",
        ) from error


def tell(text: str) -> None:
    """Print to standard error, where somebody can read it: a note must not end the work."""
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True)
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
