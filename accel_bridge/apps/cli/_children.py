"""The child process of a command: it ends with the command, however that ends."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Final

from accel_bridge.process.interrupts import held
from accel_bridge.process.ranks import be_killed_with_parent

#: Seconds that a child has to end by itself after Ctrl-C.
GRACE: Final = 1.2


def run_child(command: Sequence[str]) -> int:
    """Run a command to its end, with this one's terminal; its exit status.

    After Ctrl-C or SIGTERM it is asked to end, and killed when it has not done so in
    :data:`GRACE` seconds.
    """
    with held():
        child = subprocess.Popen(command, preexec_fn=be_killed_with_parent)
    try:
        return child.wait()
    except BaseException:
        # A terminal sends SIGINT to both; `kill` sends it to one.
        child.send_signal(signal.SIGINT)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
