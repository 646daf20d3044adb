"""Errors of preprocessing. Each says what happened, the evidence, and the next command."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from accel_bridge.errors import BridgeError

#: How advice begins after a run that ended early. Where a checkpoint stands, the run puts
#: :data:`RESUME` in its place.
AGAIN = "run the same command again"
RESUME = "run the same command with --resume"


class PreprocessError(BridgeError):
    """Preprocessing cannot go on."""


class UsageError(PreprocessError):
    """The command line asks for something that cannot be done."""


class InputError(PreprocessError):
    """An input file is missing, unreadable, or holds a bad record."""


class TokenizerError(PreprocessError):
    """The tokenizer cannot be built from the files that were given."""


class WorkerError(PreprocessError):
    """A worker process died or failed."""


class ResumeError(PreprocessError):
    """``--resume`` finds nothing to continue, or a run with other settings."""


class Interrupted(PreprocessError):
    """SIGINT or SIGTERM ended the run."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"interrupted by {signal.Signals(number).name}",
            evidence="earlier output, if any, is unchanged",
            next=f"{AGAIN} to finish it",
            exit_code=128 + number,  # as shells say that a signal ended a process
        )


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn the panic of a library in Rust, which is no Exception, into RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"its library gave up: {error}") from error


@contextlib.contextmanager
def accepted(family: str) -> Iterator[None]:
    """Turn what a library says of files that make no tokenizer into :class:`TokenizerError`."""
    try:
        with panics_as_errors():
            yield
    except (BridgeError, ImportError, MemoryError):
        raise
    # Each library has errors of its own for files that it cannot use, bare Exception among them.
    except Exception as error:
        raise TokenizerError(
            f"the library for this tokenizer ({family}) does not accept it",
            evidence=f"{type(error).__name__}: {error}",
            next="check the vocabulary and merges, the tokenizer.json or the model",
        ) from error
