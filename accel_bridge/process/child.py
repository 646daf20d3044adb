"""Child processes: what a command must inherit for its Pythons to activate the bridge."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from accel_bridge.process import log
from accel_bridge.process.environment import AUTO

#: Holds ``sitecustomize`` and the hook that it arms; nothing else may be importable from there.
BOOTSTRAP: Final = Path(__file__).parent / "bootstrap"
_HOOK: Final = "accel_bridge_hook"
_PYTHONPATH: Final = "PYTHONPATH"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ`` with what lets every Python that inherits it activate the bridge.

    The folder on the path reaches a Python without accel_bridge too, which then says so. The
    variable reaches one that ignores the path (``-I``, ``-E``), where accel_bridge is installed.
    """
    before = environ.get(_PYTHONPATH, "")
    path = before
    if str(BOOTSTRAP) not in before.split(os.pathsep):
        path = os.pathsep.join([str(BOOTSTRAP), before]) if before else str(BOOTSTRAP)
    return {log.SAID: "", AUTO.name: "1", **environ, _PYTHONPATH: path}


def stand_down() -> None:
    """Activate nothing by itself in this process: it is a program of accel_bridge."""
    name = _HOOK if _HOOK in sys.modules else f"accel_bridge.process.bootstrap.{_HOOK}"
    import_module(name).stand_down()
