"""What a rank knows of its launcher: the variables it was given, its parent, its neighbours."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Final

from accel_bridge.errors import EnvironmentVariableError

#: The pid of ``accel_bridge.process.launch``, for the ranks that it starts.
LAUNCHER: Final = "_ACCEL_BRIDGE_LAUNCHER"

#: variable -> (least, most); a rank's number must also be below its count.
_RANGES: Final = {
    "WORLD_SIZE": (1, 10_000_000),
    "RANK": (0, 10_000_000),
    "LOCAL_WORLD_SIZE": (1, 100_000),
    "LOCAL_RANK": (0, 100_000),
    "MASTER_PORT": (0, 65_535),
}
_COUNTS: Final = (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))

#: What torchrun sets for one process; port 0 is any that is free.
SINGLE_PROCESS: Final = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
#: Those that say which of several processes this is. The other two say where they meet, and are
#: exported by many a shell that starts one process.
_PLACES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
#: Set by launchers that start several processes and leave the above to the user.
OTHER_LAUNCHERS: Final = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

_PR_SET_PDEATHSIG: Final = 1
#: The pid of a process that may spawn others.
_PARENT: Final = "_ACCEL_BRIDGE_PARENT"


def check_variables(environ: Mapping[str, str]) -> None:
    """A launcher's variables must be numbers, and a rank's below the count.

    :raises EnvironmentVariableError: for the first that is not.
    """
    for name in _RANGES:
        if name in environ:
            number(name, environ)
    for rank, count in _COUNTS:
        if rank in environ and count in environ and number(rank, environ) >= number(count, environ):
            raise _wrong(f"{rank}={environ[rank]} is not below {count}={environ[count]}.", rank)


def number(name: str, environ: Mapping[str, str]) -> int:
    """The number in a launcher's variable.

    :raises EnvironmentVariableError: it holds something else, or one out of range.
    """
    least, most = _RANGES[name]
    text = environ[name].strip()
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not least <= int(text) <= most:
        raise _wrong(f"{name}={environ[name]!r} is not a number from {least} to {most}.", name)
    return int(text)


def _wrong(what: str, name: str) -> EnvironmentVariableError:
    return EnvironmentVariableError(
        what,
        evidence=f"{name} says which of several processes this is; a launcher such as torchrun "
        "sets it",
        next=f"unset {name}, or start the ranks with torchrun or `accel-bridge pretrain "
        "--nproc-per-node N`",
    )


def is_launched(environ: Mapping[str, str]) -> bool:
    """A launcher, or the user by hand, has said which of several processes this is."""
    return any(name in environ for name in (*_PLACES, *OTHER_LAUNCHERS))


def set_single_process(environ: MutableMapping[str, str]) -> None:
    """Let ``torch.distributed`` start without a launcher: Megatron initializes it always."""
    if not is_launched(environ):
        for name, value in SINGLE_PROCESS.items():
            environ.setdefault(name, value)


def die_with_launcher() -> None:
    """Let the kernel end this rank when torchrun is killed: nobody else would.

    A parent that died before the kernel was asked is noticed here.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if be_killed_with_parent(os.getppid()) and _has_ended(os.environ.get(LAUNCHER, "")):
        os.kill(os.getpid(), signal.SIGKILL)


def be_killed_with_parent(parent: int) -> bool:
    """Ask the kernel to kill this process when its parent dies; whether it will.

    :param parent: its pid: it may have died before the kernel was asked.
    """
    try:
        status: int = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (AttributeError, OSError):
        return False  # not Linux
    if status == 0 and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return status == 0


def _has_ended(pid: str) -> bool:
    return pid.isdigit() and not Path(f"/proc/{pid}").exists()


def end_with_parent() -> None:
    """Let a process that ``multiprocessing`` spawned end when its parent is killed.

    Managers of a checkpoint's writers would stay. It is a thread that waits: the kernel's signal
    comes already when the thread that spawned the process ends.
    """
    parent = os.getppid()
    gone = _has_ended(os.environ.get(_PARENT, ""))  # before this process could ask
    os.environ[_PARENT] = str(os.getpid())  # for those that this process will spawn
    # While it imports the program's main module, where this is called, it has no parent_process().
    starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if multiprocessing.parent_process() is None and not starting:
        return

    def wait() -> None:
        # Its sentinel says nothing while another child of the parent holds the same pipe.
        while not gone and os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="accel_bridge parent", daemon=True).start()


def neighbours() -> Iterator[tuple[int, int, str]]:
    """Rank, pid and state letter of this machine's other ranks of the same launcher."""
    return (found for found in _ranks_of(os.getppid()) if found[1] != os.getpid())


def _ranks_of(launcher: int) -> Iterator[tuple[int, int, str]]:
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for pid in map(int, _read(children).split()):
            found = re.search(r"(?:^|\0)RANK=(\d+)", _read(Path(f"/proc/{pid}/environ")))
            state = re.search(r"\) (\S)", _read(Path(f"/proc/{pid}/stat")))
            if found and state:
                yield int(found[1]), pid, state[1]


def watch_stopped() -> None:
    """In the launcher: let ranks end that were stopped (SIGSTOP) and are asked to end (SIGTERM).

    The request waits for as long as the process is stopped, so torchrun would wait for 30 s, kill
    it, and take that death for the cause.
    """

    def watch() -> None:
        while True:
            time.sleep(0.5)
            for _, pid, state in _ranks_of(os.getpid()):
                waits = re.search(r"^ShdPnd:\s*(\w+)", _read(Path(f"/proc/{pid}/status")), re.M)
                if state == "T" and waits and int(waits[1], 16) >> (signal.SIGTERM - 1) & 1:
                    with contextlib.suppress(OSError):  # it has ended meanwhile
                        os.kill(pid, signal.SIGCONT)

    threading.Thread(target=watch, name="accel_bridge stopped ranks", daemon=True).start()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
