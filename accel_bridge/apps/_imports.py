"""Whether libraries can be imported, tried in child processes: a broken one may abort, or hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

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
    until = time.monotonic() + seconds
    children: list[subprocess.Popen[bytes]] = []
    late = f"did not end in {seconds:g} s (--wait SECONDS waits longer)"

    def try_one(module: str) -> ImportResult:
        detail = _tried(module, until, late, environ, children)
        left = until - time.monotonic()
        if detail and environ.get(AUTOLOAD) != "0" and left > 0:
            alone = {**environ, AUTOLOAD: "0"}
            if not _tried(module, until, late, alone, children):
                detail += f"  (it works with {AUTOLOAD}=0)"
        return ImportResult(module, not detail, detail, late in detail)

    with ThreadPoolExecutor(_WORKERS) as pool:
        runs = {module: pool.submit(try_one, module) for module in modules}
        try:
            wait(runs.values(), QUIET)
            names = [f"`import {module}`" for module, run in runs.items() if run.running()]
            if names:
                say(f"waiting for {' and '.join(names)} in a child process, {seconds:g} s at most")
            return [run.result() for run in runs.values()]
        finally:
            until = 0.0  # after Ctrl-C nothing more begins
            for child in children:
                child.kill()


def _tried(
    module: str,
    until: float,
    late: str,
    environ: Mapping[str, str],
    children: list[subprocess.Popen[bytes]],
) -> str:
    """Nothing when it worked, else what went wrong in one line."""
    left = until - time.monotonic()
    if left <= 0:
        return "not tried: time was up (--wait SECONDS waits longer)"
    # A file and no pipe: a child that writes much would wait for a reader.
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD.format(seconds=left, module=module)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=dict(environ),
        )
        children.append(child)
        try:
            status = child.wait(left + 1)
        except subprocess.TimeoutExpired:  # it is too stuck to end itself
            child.kill()
            status = child.wait()
        log.seek(0)
        lines = log.read(1 << 20).decode(errors="replace").strip().splitlines()
    if status == 0:
        return ""
    timed_out = any(line.startswith("Timeout (") for line in lines)
    if timed_out or (status == -signal.SIGKILL and not lines):
        frames = [
            frame.strip()
            for above, frame in pairwise(lines)
            if above.startswith(("Thread 0x", "Current thread 0x"))
        ]
        # The main thread is the last one.
        return f"the import {late}" + (f": it stands at {frames[-1]}" if frames else "")
    last = lines[-1].strip() if lines else "no message"
    return f"killed by {signal.Signals(-status).name}: {last}" if status < 0 else last
