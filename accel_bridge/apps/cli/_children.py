"""Child processes of commands: none outlives its command, and Ctrl-C reaches them."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Final

#: Seconds that a child has to end by itself after Ctrl-C.
GRACE: Final = 1.2


def run_child(command: Sequence[str]) -> int:
    """Run a command to its end, with this one's terminal; its exit status.

    After Ctrl-C it is asked to end, and killed when it has not done so in :data:`GRACE` seconds.
    """
    child = subprocess.Popen(command)
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
