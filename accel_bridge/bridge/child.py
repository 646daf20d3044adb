"""How a child process activates the bridge by itself."""

from __future__ import annotations

import os
from typing import Any

from accel_bridge.bridge import activation
from accel_bridge.process import log
from accel_bridge.process.endings import show_uncaught
from accel_bridge.process.environment import AUTO
from accel_bridge.process.extras import BrokenTorch
from accel_bridge.process.meeting import place
from accel_bridge.process.ranks import end_with_parent, is_launched, set_single_process


def activate_here() -> None:
    """Activate the bridge, for the hook: PyTorch or Megatron is about to be imported.

    :raises BridgeError: as ``accel_bridge.activate``. A PyTorch whose import fails is left to
        the import itself.
    """
    if activation.is_activating() or activation.current() is not None:
        return
    AUTO.read()
    os.environ.setdefault(log.SAID, "")
    end_with_parent()
    show_uncaught()
    try:
        activation.activate()
    except BrokenTorch as error:
        log.warn(f"the bridge is not active: {error.what}")
    else:
        allow_one_process()
        place()


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
            log.say("no launcher started this process: it is rank 0 of 1")
            set_single_process(os.environ)
        return original(*args, **kwargs)

    handlers["env"] = alone
