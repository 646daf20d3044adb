"""A rank that kills itself in the middle of something, for ``--runner "end_to_end.dying STAGE"``.

Only rank 1 dies, and only in the first attempt of a launcher: in a backward pass, a collective that
the other ranks wait in, or a save (:data:`SAVED` is the iteration whose checkpoint stays half).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accel_bridge.run

RANK = "1"
#: Calls after which it happens: training has begun, and a checkpoint is there.
CALLS = {"backward": 600, "collective": 220}
SAVED = "iter_0000004"


def main(stage: str, *words: str) -> int:
    """Arm ``stage`` and run the script."""
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if first and os.environ.get("RANK") == RANK:
        _arm(stage, words)
    return accel_bridge.run.main(words)


def _arm(stage: str, words: tuple[str, ...]) -> None:
    import torch

    if stage == "save":
        directory = Path(words[words.index("--save") + 1]) / SAVED
        threading.Thread(target=_die_when_there, args=(directory,), daemon=True).start()
        return
    count = [0]

    def call(*_: Any) -> None:
        count[0] += 1
        if count[0] == CALLS[stage]:
            os.kill(os.getpid(), signal.SIGKILL)

    if stage == "backward":
        torch.nn.modules.module.register_module_full_backward_hook(call)
    else:
        torch.distributed.all_reduce = _counted(torch.distributed.all_reduce, call)


def _counted(function: Callable[..., Any], call: Callable[[], None]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        call()
        return function(*args, **kwargs)

    return counted


def _die_when_there(directory: Path) -> None:
    while not directory.exists():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
