"""A rank that kills itself in the middle of something, for ``--runner "end_to_end.dying STAGE"``.

Only rank 1 dies, and only in the first attempt of a launcher: in a collective that the other rank
waits in, or a save (:data:`SAVED` is the iteration whose checkpoint stays half).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import accel_bridge.run

RANK = "1"
#: Collectives after which it happens: training has begun, and a checkpoint is there.
CALLS = 220
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
        directory, rank = str(Path(words[words.index("--save") + 1]) / SAVED), os.getpid()

        def die(event: str, arguments: tuple[object, ...]) -> None:
            """At the first file of its own there, also one that a fork writes."""
            if event == "open" and str(arguments[0]).startswith(f"{directory}/__"):
                os.kill(rank, signal.SIGKILL)
                time.sleep(600)  # a fork goes with its parent, and writes nothing before

        sys.addaudithook(die)
        return
    reduce, count = torch.distributed.all_reduce, itertools.count(1)

    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        if next(count) == CALLS:
            os.kill(os.getpid(), signal.SIGKILL)
        return reduce(*args, **kwargs)

    torch.distributed.all_reduce = all_reduce


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
