"""Whether libraries can be imported, tried in child processes: a broken one may abort."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

#: Seconds that one import may take, on a slow file system.
SECONDS: Final = 180
AUTOLOAD: Final = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@dataclass(frozen=True, slots=True)
class ImportResult:
    """How ``import MODULE`` went in a process of its own.

    :param detail: empty when it worked; else the last line of the traceback, the signal that
        killed the process, or the time it did not keep to.
    """

    module: str
    ok: bool
    detail: str = ""


def try_imports(modules: Sequence[str]) -> list[ImportResult]:
    """Import each module in its own child process, two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(try_import, modules))


def try_import(module: str) -> ImportResult:
    """Import ``module`` as a script would; a failure is tried again without torch's autoload.

    torch imports vendor packages by itself, and the second try tells whether one of those, not
    torch, is broken.
    """
    detail = _import(module, {})
    if detail is None:
        return ImportResult(module, True)
    if os.environ.get(AUTOLOAD) != "0" and _import(module, {AUTOLOAD: "0"}) is None:
        detail += f"  (it works with {AUTOLOAD}=0)"
    return ImportResult(module, False, detail)


def _import(module: str, extra: Mapping[str, str]) -> str | None:
    """None when it worked, else what went wrong in one line."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, **extra},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the import did not end in {SECONDS} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    last = lines[-1].strip() if lines else "no message"
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}: {last}"
    return last
