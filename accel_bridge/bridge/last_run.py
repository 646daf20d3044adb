"""How the patches of the last run ended: a small file, for ``accel-bridge patches --last``."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.patching import State, Status
from accel_bridge.process import log
from accel_bridge.process.outputs import OutputError, write_output

#: Raised when a field of the document changes its meaning.
_FORMAT: Final = 1
#: What is kept of a patch.
FIELDS: Final = ("id", "state", "target", "reason", "why")
_LIST: Final = "`accel-bridge patches --last` lists them"


def path() -> Path:
    """The file: one for each user, in the directory for such notes."""
    directory = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(directory).expanduser() / "accel_bridge" / "last-run.json"


class Training:
    """Whether this process trains: an optimizer took a step. Only trainings are noted."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.stepped = False
        self._hook: Any = register_optimizer_step_post_hook(self._step)

    def _step(self, *_: object) -> None:
        self.stepped = True

    def end(self) -> None:
        """Look no more."""
        self._hook.remove()


def report(backend: str, statuses: Sequence[Status], *, trained: bool) -> None:
    """At the end of a run: one line, and the file. Silent where no patch was ever reached.

    :param trained: a look, or a process beside a training, leaves the note of the last one.
    """
    states = [status.state for status in statuses]
    used = states.count(State.REACHED)
    if not used or os.environ.get("RANK", "0") != "0":
        return
    if multiprocessing.parent_process() is not None and not trained:
        return  # a worker of rank 0, which writes checkpoints or reads data
    idle = [s.patch.id for s in statuses if s.state is State.APPLIED and s.counted]
    failed = states.count(State.FAILED)
    counts = [f"patches used: {used}"]
    counts += [f"not needed: {len(idle)}"] if idle else []
    counts += [f"failed: {failed}"] if failed else []
    kept = trained and _keep(backend, statuses)
    log.debug(f"patches never reached: {', '.join(idle)}")
    log.say(", ".join(counts) + (f" ({_LIST})" if kept else ""))


def _keep(backend: str, statuses: Sequence[Status]) -> bool:
    """Write the file; a home that cannot be written is no reason to fail."""
    document = {
        "format": _FORMAT,
        "ended": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": shlex.join(sys.argv),
        "backend": backend,
        "patches": [
            {
                "id": status.patch.id,
                "state": status.state.value,
                "target": status.patch.target,
                "reason": status.reason,
                "why": status.patch.why,
            }
            for status in statuses
        ],
    }
    with contextlib.suppress(OSError, OutputError, RuntimeError):  # no home at all
        path().parent.mkdir(parents=True, exist_ok=True)
        write_output(path(), json.dumps(document, indent=1).encode(errors="backslashreplace"))
        return True
    return False


def read() -> dict[str, Any]:
    """The document of the last run.

    :raises BridgeError: there is none, or something else is in its place.
    """
    try:
        document = json.loads(path().read_text(encoding="utf-8"))
        texts = [document[name] for name in ("ended", "command", "backend")]
        texts += [row[name] for row in document["patches"] for name in FIELDS]
        if document["format"] == _FORMAT and all(isinstance(text, str) for text in texts):
            return dict(document)
        found = "it was written by another version, or by somebody else"
    except (OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        found = f"{type(error).__name__}: {error}"
    raise BridgeError(
        "No finished training is noted here.",
        evidence=f"{path()}: {found}",
        next="train with the bridge active (rank 0 notes how its patches ended), or "
        "accel-bridge patches SCRIPT ARGUMENTS",
    )
