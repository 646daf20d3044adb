"""The one process of a run: a signal that ends it is named, signals reach it, it is not left."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from processes import ends

from accel_bridge.process import endings
from accel_bridge.process.endings import ProcessKilledError, held


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGSEGV, "compiled library failed"),
        (signal.SIGKILL, "memory is full"),
        (signal.SIGBUS, "/dev/shm"),
        (signal.SIGRTMIN + 1, "somebody sent it"),
    ],
)
def test_a_crash_is_named(number: int, words: str) -> None:
    code = f"import os, resource; resource.setrlimit(4, (0, 0)); os.kill(os.getpid(), {number})"
    with pytest.raises(ProcessKilledError, match="rank 0 was killed by") as caught:
        endings.run([sys.executable, "-c", code])
    assert words in str(caught.value)
    assert f"exit status -{number}" in caught.value.evidence[0]


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("", 0)])
def test_a_status_is_the_process_own(code: str, status: int) -> None:
    assert endings.run([sys.executable, "-c", code]) == status


#: A program that runs one, as `accel-bridge pretrain` does.
PARENT = """
import signal, sys
from accel_bridge.process import endings
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup leaves it ignored
sys.exit(endings.run([sys.executable, "-c", sys.argv[1]]))
"""
#: A command that starts another one, as `accel-bridge parity record` and `demo` do.
COMMAND = """
import signal, sys
from accel_bridge.process.endings import number_of, raising
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from accel_bridge.apps.cli.parity_record import run_child
try:
    with raising():
        run_child([sys.executable, "-c", sys.argv[1]])
except KeyboardInterrupt as interrupt:
    sys.exit(128 + number_of(interrupt))
"""


@pytest.mark.parametrize(
    ("program", "number", "status"),
    [
        (PARENT, signal.SIGTERM, 128 + signal.SIGTERM),
        (PARENT, signal.SIGHUP, 128 + signal.SIGHUP),
        # Nobody asks a process to end by SIGUSR1: there it is named, as a crash is.
        (PARENT, signal.SIGUSR1, 1),
        (PARENT, signal.SIGKILL, -signal.SIGKILL),
        (COMMAND, signal.SIGTERM, 128 + signal.SIGTERM),
        (COMMAND, signal.SIGHUP, 128 + signal.SIGHUP),
        (COMMAND, signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_signal_reaches_the_process_which_ends_too(
    program: str, number: signal.Signals, status: int
) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    parent = subprocess.Popen(
        [sys.executable, "-c", program, code], stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    parent.send_signal(number)
    assert parent.wait(10) == status
    assert ends(pid)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """A command below `nohup` outlives its terminal."""
    code = f"""if True:
        import os, signal
        from accel_bridge.process.endings import raising
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with raising():
            os.kill(os.getpid(), signal.SIGHUP)
        raise SystemExit({7})"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_python_ignores_comes_again(number: signal.Signals) -> None:
    """One that is raised in the callback of a weak reference is printed and forgotten."""
    code = f"""if True:
        import os, time, weakref
        from accel_bridge.process.endings import number_of, raising
        class Thing: pass
        thing = Thing()
        noticed = weakref.ref(thing, lambda _: (os.kill(os.getpid(), {int(number)}), time.sleep(0)))
        try:
            with raising():
                del thing
                time.sleep(20)
        except KeyboardInterrupt as interrupt:
            raise SystemExit(128 + number_of(interrupt))"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=15
    )
    assert (done.returncode, done.stderr) == (128 + number, "")


def test_ctrl_c_waits_until_a_program_of_ours_listens() -> None:
    """Python prints a traceback of an interrupt while it starts."""
    code = """if True:
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)  # as while its modules are imported
        from accel_bridge.process.endings import listen
        try:
            listen()
        except KeyboardInterrupt:
            raise SystemExit(130)"""
    with held():
        child = subprocess.Popen([sys.executable, "-c", code])
    assert child.wait(10) == 130
