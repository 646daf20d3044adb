"""How a program ends: by a failure, reported in three parts; by Ctrl-C, SIGTERM or SIGHUP; and
how a child is waited for, and what is said of one that a signal ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from accel_bridge.errors import ERROR_PREFIX, BridgeError
from accel_bridge.process import cache
from accel_bridge.process.log import is_debug
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

    parent = os.getpid()

    def prepare() -> None:
        be_killed_with_parent(parent)
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


def status_of(
    command: Sequence[str], *kept: int, environ: Mapping[str, str] | None = None
) -> tuple[int, int]:
    """Run a command to its end, on this terminal, with signals passed on: its pid and status.

    :param kept: as of :func:`signals_kept`.
    :returns: the status as ``Popen`` has it.
    :raises OSError: it cannot be started.
    """
    with signals_kept(*kept) as prepare:
        child = subprocess.Popen(command, env=environ, preexec_fn=prepare)
        while (status := wait(child, _LOOK)) is None:
            pass
    return child.pid, status


def run(command: Sequence[str]) -> int:
    """Run the only rank of a run to its end, on this terminal; its status as shells count it.

    :param command: a program of ours, which listens to Ctrl-C when it is ready
        (:func:`accel_bridge.process.endings.listen`).

    A crash of compiled code, and a kill by the kernel, leave nobody in that process to tell.

    :raises ProcessKilledError: that is how it ended.
    """
    pid, status = status_of(command, signal.SIGINT)
    killed = of_ended("rank 0", status, pid)
    if killed is not None:
        raise killed
    return 128 - status if status < 0 else status


@contextmanager
def ending(child: subprocess.Popen[Any], number: signal.Signals, grace: float) -> Iterator[None]:
    """Where this block is left by an exception, ask a child to end; then kill it.

    :param grace: seconds that it has to end by itself.
    """
    try:
        yield
    except BaseException:
        child.send_signal(number)
        try:
            child.wait(grace)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


#: Seconds that the other ranks of a machine wait for the first to say the same. Ranks that fail
#: alike are ended by torchrun meanwhile; one that failed alone then speaks for itself.
PATIENCE: Final = 4.0

_ATTRIBUTE: Final = "__accel_bridge__"
#: Gives the meaning of an error that nobody has caught; None where it does not know it.
Explainer = Callable[[BaseException], BridgeError | None]
_explainers: list[Explainer] = [cache.explain]
#: The text of an error whose type is another library's, and which says the three parts.
_IN_PARTS: Final = re.compile(r"(.+)((?:\n  evidence: .+)+)\n  next:     (.+)")
_reported = False


def has_reported() -> bool:
    """Whether this process ends with an error that was shown."""
    return _reported


def explain(error: BaseException, explanation: BridgeError) -> None:
    """Keep what an error means with it; the error itself stays what it is."""
    setattr(error, _ATTRIBUTE, explanation)


def explain_uncaught(explainer: Explainer) -> None:
    """Ask ``explainer`` about every error that would end this process; once for each of them."""
    if explainer not in _explainers:
        _explainers.append(explainer)


def explanation(error: BaseException) -> BridgeError | None:
    """What an error means: itself in three parts, or what :func:`explain` kept with it."""
    if isinstance(error, BridgeError):
        return error
    return getattr(error, _ATTRIBUTE, None) or _of_text(error)


def _of_text(error: BaseException) -> BridgeError | None:
    """The three parts in the message of a shim's error, whose type is the library's own."""
    try:
        found = _IN_PARTS.fullmatch(str(error))
    except Exception:  # an error of somebody's own that cannot be shown
        return None
    if found is None:
        return None
    evidence = [line.removeprefix("  evidence: ") for line in found[2].splitlines() if line]
    return BridgeError(found[1], evidence=evidence, next=found[3])


def of_uncaught(error: BaseException) -> BridgeError | None:
    """What an error means that ends this process; None where nobody knows."""
    explained = explanation(error)
    if explained is None and isinstance(error, MemoryError):
        explained = BridgeError(
            "This machine's memory is full, or a limit of it is reached.",
            evidence=f"{type(error).__name__}: {error}".rstrip(": "),
            next="a smaller input, fewer workers or a smaller model; ACCEL_BRIDGE_LOG=debug shows "
            "where",
        )
    answers = (explainer(error) for explainer in _explainers)
    return explained or next((answer for answer in answers if answer is not None), None)


def report(error: BaseException, explained: BridgeError) -> int:
    """Print ``explained``, with ``error``'s traceback when details are wanted; the exit status."""
    global _reported
    _reported = True
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader has gone, or its disk is full
            stream.flush()
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(PATIENCE)
    if is_debug():
        traceback.print_exception(error)
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    where = f"rank {os.environ.get('RANK', '?')}: " if several else ""
    print(f"{ERROR_PREFIX} {where}{explained}", file=sys.stderr, flush=True)
    return explained.exit_code


def end_with(error: BridgeError) -> NoReturn:
    """End the process with an error that an exit function meets, after all other exit functions.

    Python would print a traceback and end with status 0.
    """
    status = report(error, error)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def show_uncaught() -> None:
    """Let errors that are explained end the program with their three parts."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        explained = of_uncaught(error)
        if explained is None:
            previous(kind, error, trace)
        else:
            report(error, explained)

    sys.excepthook = hook


#: By which a process is asked to end: by a terminal, by a program, by a terminal that goes away.
ASKED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds in which a process that was asked to end ends what it has started.
_GRACE: Final = 3.0
#: Seconds until an interrupt that was ignored comes again.
_LATER: Final = 0.02
_terminated = -_GRACE


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP asks this process to end, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def number_of(interrupt: KeyboardInterrupt) -> int:
    return interrupt.number if isinstance(interrupt, Terminated) else int(signal.SIGINT)


def _terminate(number: int, _frame: FrameType | None) -> None:
    global _terminated
    # What ends now takes its children along; a second signal must not keep it from that.
    if time.monotonic() - _terminated >= _GRACE:
        _terminated = time.monotonic()
        raise Terminated(number)


def _again(unraisable: sys.UnraisableHookArgs) -> None:
    """An interrupt that came where Python ignores exceptions, as in a weak reference's callback."""
    global _terminated
    error = unraisable.exc_value
    if not isinstance(error, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    _terminated = -_GRACE
    # Not from here: what is raised in this function is ignored, too.
    later = threading.Timer(_LATER, os.kill, (os.getpid(), number_of(error)))
    later.daemon = True
    later.start()


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise :class:`Terminated`, where they would end the process."""
    changed = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` lets it be ignored
                signal.signal(number, _terminate)
                changed.append(number)
    hook, sys.unraisablehook = sys.unraisablehook, _again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def as_usual() -> None:
    """Take :func:`raising` back: another program begins in this process."""
    if sys.unraisablehook is _again:
        sys.unraisablehook = sys.__unraisablehook__
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let what asks the process to end do so: compiled code looks for signals when it is done."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in ASKED:
            if signal.getsignal(number) in (signal.default_int_handler, _terminate):
                previous[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back in the programs of ours that are started here, until they listen.

    A Python that is interrupted while it starts prints a traceback, before any code of ours runs.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listen() -> None:
    """Take what was held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
