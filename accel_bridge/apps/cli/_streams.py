"""The standard streams of a command: closed, full, or read by somebody who has left."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

from accel_bridge._errors import BridgeError

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
    a child process too, would end up in it.

    :raises StreamError: stdout is closed, so nobody would see the answer.
    """
    stdout = sys.stdout
    for number, mode, name in ((0, "r", "stdin"), (1, "w", "stdout"), (2, "w", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
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
        drop_stdout()
        if isinstance(error, BrokenPipeError):
            raise ReaderGone from None
        raise StreamError(
            "What this command prints cannot be written.",
            evidence=str(error),
            next="free room where the standard output goes, or send it somewhere else",
        ) from error


def drop_stdout() -> None:
    """Let nothing more be written: python must not complain again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)


@contextlib.contextmanager
def dies_of_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once, as it ends a program that is not Python's.

    For commands that leave nothing behind. A KeyboardInterrupt in the import of a library may be
    caught there, and is not even raised while one of its functions runs.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:  # ignored, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
