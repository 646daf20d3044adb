"""What every command keeps to when it writes: nothing is lost, nothing half-written.

No command writes over a file that it neither made nor was given as output: :func:`check_output`
before the work begins. Small files appear whole or not at all: :func:`write_output`. Two runs
never write one output: :class:`accel_bridge.process.locks.OutputLock`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from accel_bridge.errors import BridgeError

#: Bytes at the beginning of a file by which :func:`check_output` tells who made it.
HEAD_BYTES = 8192
#: Bytes that a place must take before a command begins: the blocks of most file systems.
_TRIED_BYTES = 4096


class OutputError(BridgeError):
    """Output cannot be written, or must not be."""


def check_output(
    path: str | os.PathLike[str],
    *,
    option: str,
    inputs: Iterable[str | os.PathLike[str]] = (),
    made: Sequence[bytes] | Callable[[bytes], bool] | None = None,
    makes_folders: bool = False,
) -> None:
    """Refuse a file that must not, or cannot, become output. Nothing is changed.

    :param path: the file to be.
    :param option: what named it, for the message: ``--png``.
    :param inputs: what the same command reads; links to them count.
    :param made: how a file starts that the command made earlier: byte strings, one of which it
        begins with, or a function of its first :data:`HEAD_BYTES`. A file that starts otherwise
        is somebody else's. An empty file is nobody's. None: whatever is there may be replaced.
    :param makes_folders: whether the command makes the folders that lead to it.
    :raises OutputError: it is an input, a folder, a device, another program's file, or at a place
        where no file can be made.
    """
    target = os.fspath(path)
    with mapped(target, option):
        for given in inputs:
            if _same(target, os.fspath(given)):
                raise OutputError(
                    f"{option} would write over an input.",
                    evidence=f"{target} is {os.fspath(given)}, which this command reads",
                    next=f"give {option} another file",
                )
        try:
            mode = os.stat(target).st_mode
        except FileNotFoundError:
            _check_place(target, option, makes_folders)
            return
        if not stat.S_ISREG(mode):
            raise OutputError(
                f"{option} must name a file.",
                evidence=f"{target} is {'a folder' if stat.S_ISDIR(mode) else 'a device or pipe'}",
                next=f"give {option} a file in a folder that can be written",
            )
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
        if made is not None and not _is_made(target, made):
            raise OutputError(
                f"{option} would write over a file that this command did not make.",
                evidence=f"{target} begins otherwise than what {option} writes",
                next=f"give {option} another file, or move that one away",
            )
        # The new file is written beside it first.
        _check_place(target, option, makes_folders)


def holds(mark: bytes) -> Callable[[bytes], bool]:
    """A ``made`` for files that have ``mark`` somewhere in their head."""
    return lambda head: mark in head


@contextlib.contextmanager
def mapped(path: str | os.PathLike[str], option: str = "the output") -> Iterator[None]:
    """Whatever the system says about ``path`` becomes an error in three parts.

    :raises OutputError: in place of OSError.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise OutputError(
            f"{os.fspath(path)} cannot be written.",
            evidence=f"{option}: {error}",
            next="make room on that disk, then run the same command again"
            if full
            else "give a path in a folder that exists and can be written",
        ) from error


def write_output(path: str | os.PathLike[str], data: bytes, *, option: str = "the output") -> None:
    """Write a file that appears whole or not at all; an earlier one stays until then.

    A link stays a link: the file that it leads to is replaced.

    :raises OutputError: it cannot be written; nothing has changed.
    """
    with mapped(path, option):
        target = os.path.realpath(path)
        if os.path.exists(target) and not os.path.isfile(target):
            Path(target).write_bytes(data)  # a device takes bytes and has no name to replace
            return
        partial = f"{target}.{os.getpid()}.new"
        try:
            with open(partial, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _check_place(path: str, option: str, makes_folders: bool) -> None:
    """The folder of ``path``, or the nearest that is there, must take files."""
    folder = os.path.dirname(os.path.realpath(path))
    while makes_folders and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path} cannot be written.",
            evidence=f"{option}: {folder} is no folder that can be written",
            next=f"give {option} a path in a folder that can be written",
        )
    # The superuser may write everywhere, but /proc and others take no file, and a full disk takes
    # its name alone.
    tried = os.path.join(folder, f".accel-bridge.{os.getpid()}.{threading.get_ident()}")
    descriptor = os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, bytes(_TRIED_BYTES))
    finally:
        os.unlink(tried)
        os.close(descriptor)


def _is_made(path: str, made: Sequence[bytes] | Callable[[bytes], bool]) -> bool:
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    return not head or (made(head) if callable(made) else head.startswith(tuple(made)))
