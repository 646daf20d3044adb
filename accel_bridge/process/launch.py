"""``python -m accel_bridge.process.launch``: torchrun that says in three parts how a rank ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from accel_bridge.errors import BridgeError
from accel_bridge.process.child import stand_down
from accel_bridge.process.endings import GOES_ON, of_signal
from accel_bridge.process.extras import require
from accel_bridge.process.failures import report
from accel_bridge.process.interrupts import listen
from accel_bridge.process.meeting import place
from accel_bridge.process.ranks import LAUNCHER, watch_stopped

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


class LaunchError(BridgeError):
    """The ranks could not be started, or one of them failed."""

    exit_code = 1


def main(words: Sequence[str]) -> int:
    """Run torchrun with ``words``; its exit status."""
    try:
        listen()
        return _launch(words)
    except KeyboardInterrupt:  # also while torch is imported, which takes seconds
        return 128 + int(signal.SIGINT)


def _launch(words: Sequence[str]) -> int:
    stand_down()
    if "_ACCEL_BRIDGE_REHEARSAL" in os.environ:  # ranks are then rehearsed, not started
        before, _, function = os.environ["_ACCEL_BRIDGE_BEFORE"].partition(":")
        getattr(import_module(before), function)()
    try:
        require("torch")
    except BridgeError as error:
        return report(error, error)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    place()
    os.environ[LAUNCHER] = str(os.getpid())
    watch_stopped()
    try:
        options = run.parse_args(list(words))
        if options.max_restarts > 0:
            # torch keeps one store for all attempts, in which gloo finds the dead ranks' addresses.
            os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        run.run(options)
    except ChildFailedError as error:
        _, first = _cause(error)
        if first.exitcode == BridgeError.exit_code:
            return int(first.exitcode)  # the rank has said it, in three parts
        return report(error, of_failed_rank(error))
    except SignalException as error:
        print(f"accel-bridge: stopped by {error.sigval.name}", file=sys.stderr)
        return 128 + int(error.sigval)
    except BridgeError as error:
        return report(error, error)
    except Exception as error:  # whatever torchrun makes of its options and of the network
        told = LaunchError(
            "torchrun could not start the ranks, or lost them.",
            evidence=f"{type(error).__name__}: {error}",
            next="fix the option that it names; ACCEL_BRIDGE_LOG=debug shows the traceback",
        )
        return report(error, told)
    return 0


def _cause(error: ChildFailedError) -> tuple[int, ProcessFailure]:
    """The rank that failed first; one that was killed takes its neighbours along."""
    for rank, failure in error.failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:  # which is torchrun's
            return rank, failure
    rank, failure = error.get_first_failure()
    return rank, failure


def of_failed_rank(error: ChildFailedError) -> BridgeError:
    """The rank that failed first, and how."""
    rank, first = _cause(error)
    where = f"pid {first.pid}, exit status {first.exitcode}"
    if first.exitcode >= 0:
        return LaunchError(
            f"rank {rank} failed.",
            evidence=f"{where}; its own message is above",
            next=f"fix what it says; {GOES_ON}",
        )
    return of_signal(f"rank {rank}", -first.exitcode, where)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
