"""An output belongs to one run at a time, on one machine and on several that share a file system.

The kernel's lock (``flock``) frees itself with a killed owner, but not every shared file system
carries it to other machines. So a lock file also says who owns it, and an owner that asks for it
touches the file every few seconds: a run on another machine sees whether the owner lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import printable
from accel_bridge.process.outputs import OutputError, mapped
from accel_bridge.process.streams import tell

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
    told = f"pid {owner['pid']} on {owner.get('host')} since {owner.get('since')}"
    return printable(f"{told}: {owner.get('command')}")
