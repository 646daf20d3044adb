"""How the one process of a run is waited for, and what is said of one that a signal ended."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.ranks import be_killed_with_parent

#: What a process is sent to end, or to do something: the command gets it too.
_FORWARDED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_WAITED_FOR: Final = {*_FORWARDED, signal.SIGCHLD, signal.SIGWINCH}
#: ``si_code`` of signals that the kernel sends to all in the foreground, as after Ctrl-C.
_BY_KERNEL: Final = 0x80
#: Seconds between two looks at a process that runs.
_LOOK: Final = 1.0
#: Signals by which somebody ends a process on purpose.
_ASKED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
#: What to do after a rank has ended that others waited for.
GOES_ON: Final = (
    "the same command goes on from the last whole checkpoint when it has --save and --load"
)
_CAUSES: Final = {
    "SIGKILL": "the kernel kills so when the machine's memory is full (`dmesg | tail`), and "
    "batch systems at their limits",
    "SIGSEGV": "a compiled library failed; PYTHONFAULTHANDLER=1 shows where",
    "SIGABRT": "a compiled library gave up; its last lines are above",
    "SIGBUS": "a file that is mapped was cut, or /dev/shm is full (`df -h /dev/shm`)",
    "SIGILL": "a compiled library was built for another processor",
    "SIGXCPU": "the limit of processor time is reached (`ulimit -t`)",
    "SIGXFSZ": "the limit of file sizes is reached (`ulimit -f`)",
}


class ProcessKilledError(BridgeError):
    """A signal ended a process of a run."""

    exit_code = 1


def of_signal(who: str, number: int, where: str) -> ProcessKilledError:
    """What is said of a process that a signal ended.

    :param who: it is, as ``rank 3``.
    :param number: of the signal.
    :param where: the process, for the evidence.
    """
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal between the first and the last
        name = f"signal {number}"
    return ProcessKilledError(
        f"{who} was killed by {name}.",
        evidence=(where, _CAUSES.get(name, "somebody sent it that signal")),
        next=GOES_ON,
    )


def of_ended(who: str, status: int, pid: int) -> ProcessKilledError | None:
    """What is said of a process that ended with a ``Popen``'s ``status``.

    None where it ended by itself, or somebody asked it to end.
    """
    if status >= 0 or -status in _ASKED:
        return None
    return of_signal(who, -status, f"pid {pid}, exit status {status}")


@contextmanager
def signals_kept(*kept: int) -> Iterator[Callable[[], None]]:
    """Keep signals for :func:`wait`; gives what a child does before its program begins.

    It takes signals as this process did, and ends with it.

    :param kept: signals that are kept from the child, too, until it listens.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)

    def prepare() -> None:
        be_killed_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, {*before, *kept})

    try:
        yield prepare
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait for a child, at most some seconds, and pass signals on; its status, None if it runs."""
    status = child.poll()
    if status is not None:
        return status
    came = signal.sigtimedwait(_WAITED_FOR, seconds)
    if came is not None and came.si_signo in _FORWARDED and came.si_code != _BY_KERNEL:
        child.send_signal(came.si_signo)
    return child.poll()


def run(command: Sequence[str]) -> int:
    """Run the only rank of a run to its end, on this terminal; its status as shells count it.

    :param command: a program of ours, which listens to Ctrl-C when it is ready
        (:func:`accel_bridge.process.interrupts.listen`).

    A crash of compiled code, and a kill by the kernel, leave nobody in that process to tell.

    :raises ProcessKilledError: that is how it ended.
    """
    with signals_kept(signal.SIGINT) as prepare:
        child = subprocess.Popen(command, preexec_fn=prepare)
        while (status := wait(child, _LOOK)) is None:
            pass
    killed = of_ended("rank 0", status, child.pid)
    if killed is not None:
        raise killed
    return 128 - status if status < 0 else status
