"""Whether libraries can be imported, tried in child processes: a broken one may abort, or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Final

#: Seconds that all imports together may take, where the user does not say.
SECONDS: Final = 45.0
#: Seconds after which a line says what is waited for.
QUIET: Final = 3.0
#: Imports at a time.
_WORKERS: Final = 2
AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"

#: Imports a module. The child dies with its parent, and says where it stands when time is up.
_CHILD: Final = """
import faulthandler, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
faulthandler.dump_traceback_later({seconds}, exit=True)
import {module}
faulthandler.cancel_dump_traceback_later()
"""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """How ``import MODULE`` went in a process of its own.

    :param detail: empty when it worked; else the last line of the traceback, the signal that
        killed the process, or where it stood when time was up.
    :param slow: time was up.
    """

    module: str
    ok: bool
    detail: str = ""
    slow: bool = False


@dataclass(slots=True)
class _Try:
    """One import that is under way.

    :param log: its stderr.
    :param before: what went wrong with torch's autoload, when this is the try without it.
    """

    module: str
    child: subprocess.Popen[bytes]
    log: IO[bytes]
    before: str = ""


def try_imports(
    modules: Sequence[str],
    seconds: float = SECONDS,
    say: Callable[[str], object] = lambda line: None,
    environ: Mapping[str, str] = os.environ,
) -> list[ImportResult]:
    """Import each module in a child process as a script would, two at a time.

    A failure is tried again without torch's autoload: torch imports vendor packages by itself,
    and the second try tells whether one of those, not torch, is broken.

    :param seconds: for all of them; what is not done by then is reported so.
    :param say: called with what is waited for, when it takes long.
    :param environ: variables of the child processes.
    """
    began = time.monotonic()
    waiting, running = list(modules), list[_Try]()
    found: dict[str, ImportResult] = {}
    reported = False
    try:
        while waiting or running:
            left = began + seconds - time.monotonic()
            while waiting and len(running) < _WORKERS and left > 0:
                running.append(_start(waiting.pop(0), left, environ))
            if left <= 0 and waiting:
                for module in waiting:
                    found[module] = ImportResult(
                        module, False, "not tried: time was up (--wait SECONDS waits longer)"
                    )
                waiting.clear()
            for one in list(running):
                # The child ends itself when time is up; a stuck one is killed a second later.
                if one.child.poll() is None and left > -1:
                    continue
                running.remove(one)
                again = _finish(one, seconds, left, found, environ)
                if again is not None:
                    running.append(again)
            if not reported and time.monotonic() - began > QUIET and running:
                reported = True
                names = " and ".join(f"`import {one.module}`" for one in running)
                say(f"waiting for {names} in a child process, {seconds:g} s at most")
            time.sleep(0.02)
    finally:
        for one in running:
            one.child.kill()
            one.child.wait()
    return [found[module] for module in modules]


def _start(module: str, left: float, environ: Mapping[str, str]) -> _Try:
    # A file and no pipe: a child that writes much would wait for a reader.
    log = tempfile.TemporaryFile()  # noqa: SIM115  (_detail closes it)
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(seconds=max(left, 0.1), module=module)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        env=dict(environ),
    )
    return _Try(module, child, log)


def _finish(
    one: _Try,
    seconds: float,
    left: float,
    found: dict[str, ImportResult],
    environ: Mapping[str, str],
) -> _Try | None:
    """Note the result of a try that has ended or must end; the second try, where one is due."""
    one.child.kill()
    status = one.child.wait()
    detail = _detail(one, status, seconds)
    if detail is None and one.before:
        detail = f"{one.before}  (it works with {AUTOLOAD}=0)"
    elif detail is not None and one.before:
        detail = one.before
    elif detail is not None and environ.get(AUTOLOAD) != "0" and left > 0:
        again = _start(one.module, left, {**environ, AUTOLOAD: "0"})
        again.before = detail
        return again
    slow = detail is not None and detail.startswith(_slow(seconds))
    found[one.module] = ImportResult(one.module, detail is None, detail or "", slow)
    return None


def _detail(one: _Try, status: int, seconds: float) -> str | None:
    """None when it worked, else what went wrong in one line."""
    with one.log:
        one.log.seek(0)
        lines = one.log.read(1 << 20).decode(errors="replace").strip().splitlines()
    if status == 0:
        return None
    timed_out = any(line.startswith("Timeout (") for line in lines)
    if timed_out or (status == -signal.SIGKILL and not lines):
        frames = [
            above_and_frame[1].strip()
            for above_and_frame in pairwise(lines)
            if above_and_frame[0].startswith(("Thread 0x", "Current thread 0x"))
        ]
        # The main thread is the last one.
        return _slow(seconds) + (f": it stands at {frames[-1]}" if frames else "")
    last = lines[-1].strip() if lines else "no message"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}: {last}"
    return last


def _slow(seconds: float) -> str:
    return f"the import did not end in {seconds:g} s (--wait SECONDS waits longer)"
