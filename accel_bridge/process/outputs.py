"""What every command keeps to when it writes: nothing is lost, nothing half-written.

No command writes over a file that it neither made nor was given as output: :func:`check_output`
before the work begins. Small files appear whole or not at all: :func:`write_output`. Two runs
never write one output: :class:`accel_bridge.process.outputs.OutputLock`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shlex
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.log import tell

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
    makes_directories: bool = False,
) -> None:
    """Refuse a file that must not, or cannot, become output. Nothing is changed.

    :param path: the file to be.
    :param option: what named it, for the message: ``--png``.
    :param inputs: what the same command reads; links to them count.
    :param made: how a file starts that the command made earlier: byte strings, one of which it
        begins with, or a function of its first :data:`HEAD_BYTES`. A file that starts otherwise
        is somebody else's. An empty file is nobody's. None: whatever is there may be replaced.
    :param makes_directories: whether the command makes the directories that lead to it.
    :raises OutputError: it is empty, an input, a directory, a device, another program's file,
        or where no file can be made.
    """
    target = os.fspath(path)
    if not target:
        raise OutputError(
            f"{option} is empty.",
            evidence=f"{option} ''",
            next=f"give {option} a file; the variable that it came from may not be set",
        )
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
            _check_place(target, option, makes_directories)
            return
        if not stat.S_ISREG(mode):
            raise OutputError(
                f"{option} must name a file.",
                evidence=f"{target} is a {'directory' if stat.S_ISDIR(mode) else 'device or pipe'}",
                next=f"give {option} a file in a directory that can be written",
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
        _check_place(target, option, makes_directories)


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
            else "give a path in a directory that exists and can be written",
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


def _check_place(path: str, option: str, makes_directories: bool) -> None:
    """The directory of ``path``, or the nearest that is there, must take files."""
    directory = os.path.dirname(os.path.realpath(path))
    while makes_directories and not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    if not os.path.isdir(directory) or not os.access(directory, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path} cannot be written.",
            evidence=f"{option}: {directory} is no directory that can be written",
            next=f"give {option} a path in a directory that can be written",
        )
    # The superuser may write everywhere, but /proc and others take no file, and a full disk takes
    # its name alone.
    tried = os.path.join(directory, f".accel-bridge.{os.getpid()}.{threading.get_ident()}")
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


#: Seconds until a locked output counts as another run's: helpers of a killed run need a moment.
LOCK_SECONDS = 1.0
#: Seconds between two touches of the file, and of silence after which an owner on another machine
#: counts as dead.
BEAT, SILENCE = 10.0, 40.0
#: How a lock file begins.
_MARK: Final = '{"accel_bridge lock": '
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SHOWN: Final = 200


def is_lock(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is a lock file, or was to become one."""
    return not head or head.startswith(_MARK.encode())


class OutputLock:
    """Holds an output against other runs while it is entered.

    :param path: a file, made for the lock and removed with it, or a directory that is there.
    :param option: what named the output, for messages: ``--output-prefix``.
    :param taken: what is said where another run holds it.
    :param beats: the owner shows other machines that it lives (a thread touches the file).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        option: str,
        *,
        taken: str = "another run is writing this output",
        beats: bool = False,
    ) -> None:
        self._path = os.fspath(path)
        self._option = option
        self._taken = taken
        self._beats = beats
        self._descriptor = -1
        self._blind = False
        self._done = threading.Event()
        self._own: dict[str, Any] = {}

    def __enter__(self) -> OutputLock:
        """Take it.

        :raises OutputError: another run has it, or there can be none at that place.
        """
        end = time.monotonic() + LOCK_SECONDS
        with mapped(self._path):
            while not self._try():
                if time.monotonic() > end:
                    raise self._refused(_read(self._path))
                time.sleep(0.05)
        # A fork must not keep the lock of an owner that was killed.
        os.register_at_fork(after_in_child=self._forget)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor < 0:
            return  # a fork
        self._done.set()
        # Still locked: nobody can have taken the name for a lock of their own.
        if self._own and _read(self._path) == self._own:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._forget()

    def _forget(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _try(self) -> bool:
        if os.path.isdir(self._path):
            flags, new = os.O_RDONLY, False
        else:
            flags, new = os.O_RDWR | os.O_NOFOLLOW, not os.path.lexists(self._path)
        if new:
            flags |= os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(self._path, flags, 0o666)
        except (FileExistsError, FileNotFoundError):
            if not new and not os.path.lexists(self._path):
                return False  # removed meanwhile
            if new and os.path.lexists(self._path):
                return False  # made meanwhile
            raise
        try:
            if not self._lock(descriptor):
                return False
            # The file may have been removed by the run that held it, and made anew by another.
            if not os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                return False
            if not flags & os.O_RDWR:  # a directory
                self._descriptor, descriptor = descriptor, -1
                return True
            if self._beats and not new:
                self._await_silence()
            self._write(descriptor)
            self._descriptor, descriptor = descriptor, -1
        except FileNotFoundError:
            return False
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if self._beats:
            threading.Thread(target=self._touch, name="accel_bridge lock", daemon=True).start()
        return True

    def _lock(self, descriptor: int) -> bool:
        """Take the kernel's lock; whether nobody else has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            if not self._beats:
                raise
            self._blind = True  # this file system has no locks: only touches tell
        return True

    def _await_silence(self) -> None:
        """Refuse where an owner lives whose lock this kernel does not see.

        :raises OutputError: it does.
        """
        owner, seen = _read(self._path), _touched(self._path)
        if owner.get("machine") == _machine() and not self._blind:
            return  # the kernel says that it has ended
        tell(
            f"note: {self._path} is left by {_named(owner)}; in {SILENCE:g} seconds it is known "
            "whether that one lives"
        )
        end = time.monotonic() + SILENCE
        while time.monotonic() < end:
            time.sleep(min(1.0, SILENCE / 10))
            if _touched(self._path) != seen:
                raise self._refused(_read(self._path))

    def _write(self, descriptor: int) -> None:
        self._own = {
            "accel_bridge lock": 1,
            "machine": _machine(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "command": shlex.join(sys.argv)[:_SHOWN],
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(self._own).encode(), 0)
        os.fsync(descriptor)

    def _touch(self) -> None:
        while not self._done.wait(BEAT):
            with contextlib.suppress(OSError):  # the disk is away for a while
                os.utime(self._descriptor)

    def _refused(self, owner: dict[str, Any]) -> OutputError:
        return OutputError(
            self._taken,
            evidence=f"{self._path} is locked by {_named(owner)}",
            next=f"wait for it or end it, or choose another place than {self._option}",
        )


def _machine() -> str:
    """What the processes have in common that one kernel runs."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def _read(path: str) -> dict[str, Any]:
    """What a lock file says of its owner; nothing where it is damaged or a directory."""
    try:
        found = json.loads(Path(path).read_bytes()[:10_000])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _touched(path: str) -> int:
    """When the file was touched. It is opened: a file system may remember an older answer."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _named(owner: dict[str, Any]) -> str:
    if "pid" not in owner:
        return "a run that does not say who it is"
    holder = f"pid {owner['pid']} on {owner.get('host')} since {owner.get('since')}"
    return printable(f"{holder}: {owner.get('command')}")
