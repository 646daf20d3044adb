"""The bridge in child processes: what a command must inherit, and how a child activates."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from accel_bridge import _log
from accel_bridge._environment import AUTO
from accel_bridge._ranks import end_with_parent, is_launched, set_single_process

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
    return {_log.SAID: "", AUTO.name: "1", **environ, _PYTHONPATH: path}


def stand_down() -> None:
    """Activate nothing by itself in this process: it is a program of accel_bridge."""
    name = _HOOK if _HOOK in sys.modules else f"accel_bridge.bootstrap.{_HOOK}"
    import_module(name).stand_down()


def activate_here() -> None:
    """Activate the bridge, for the hook: PyTorch or Megatron is about to be imported.

    :raises BridgeError: as ``accel_bridge.activate``. A PyTorch whose import fails is left to
        the import itself.
    """
    import accel_bridge._activation as activation
    from accel_bridge._failures import show_uncaught
    from accel_bridge._torch import BrokenTorch

    if activation.is_activating() or activation.current() is not None:
        return
    AUTO.read()
    os.environ.setdefault(_log.SAID, "")
    end_with_parent()
    show_uncaught()
    try:
        activation.activate()
    except BrokenTorch as error:
        _log.warn(f"the bridge is not active: {error.what}")
    else:
        allow_one_process()


def allow_one_process() -> None:
    """Let a process that nobody launched as a rank start process groups, as the only one.

    It is decided when it asks for one: before that it may be a launcher itself.
    """
    from torch.distributed import is_available

    if not is_available():
        return
    from torch.distributed.rendezvous import _rendezvous_handlers as handlers

    original = handlers["env"]

    def alone(*args: Any, **kwargs: Any) -> Any:
        if not is_launched(os.environ):
            _log.say("no launcher started this process: it is rank 0 of 1")
            set_single_process(os.environ)
        return original(*args, **kwargs)

    handlers["env"] = alone
