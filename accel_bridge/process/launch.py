"""``python -m accel_bridge.process.launch``: torchrun that says in three parts how a rank ended,
and torchrun's command line: its own options, and how a module is started by it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.child import stand_down
from accel_bridge.process.endings import GOES_ON, listen, of_signal, report
from accel_bridge.process.extras import require
from accel_bridge.process.meeting import place
from accel_bridge.process.ranks import LAUNCHER, is_launched, watch_stopped

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure


def main(argv: Sequence[str]) -> int:
    """Run torchrun with ``argv``; its exit status."""
    try:
        listen()
        return _launch(argv)
    except KeyboardInterrupt:  # also while torch is imported, which takes seconds
        return 128 + int(signal.SIGINT)


def _launch(argv: Sequence[str]) -> int:
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
        options = run.parse_args(list(argv))
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
        explained = BridgeError(
            "torchrun could not start the ranks, or lost them.",
            evidence=f"{type(error).__name__}: {error}",
            next="fix the option that it names; ACCEL_BRIDGE_LOG=debug shows the traceback",
            exit_code=1,
        )
        return report(error, explained)
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
        return BridgeError(
            f"rank {rank} failed.",
            evidence=f"{where}; its own message is above",
            next=f"fix what it says; {GOES_ON}",
            exit_code=1,
        )
    return of_signal(f"rank {rank}", -first.exitcode, where)


#: The module that is torchrun, and says how a rank ended.
MODULE: Final = "accel_bridge.process.launch"
#: torchrun's options that take a value.
OPTIONS: Final = (
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--max-restarts",
    "--local-addr",
    "--log-dir",
    "--redirects",
    "--tee",
)
#: What those that count must look like, and in words.
_COUNTS: Final = {
    "--nproc-per-node": (r"[1-9]\d*|auto|cpu|gpu|xpu", "a number from 1, auto, cpu or gpu"),
    "--nnodes": (r"[1-9]\d*(:[1-9]\d*)?", "a number from 1, or MIN:MAX"),
    "--node-rank": (r"\d+", "a number from 0"),
    "--master-port": (r"\d{1,5}", "a port from 0 to 65535"),
    "--max-restarts": (r"\d+", "a number from 0"),
}
#: A rank needs at least this much memory for its Python and torch, in bytes.
_LEAST_MEMORY: Final = 150 * 2**20

#: All of them in one line, for the end of a help text.
EPILOG: Final = "torchrun options: " + " ".join((*OPTIONS, "--standalone"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that go to torchrun as they are."""
    for option in OPTIONS:
        spellings = sorted({option, "--" + option[2:].replace("-", "_")})
        parser.add_argument(*spellings, metavar="X", dest=option, help=argparse.SUPPRESS)
    parser.add_argument(
        "--standalone", action="store_true", dest="--standalone", help=argparse.SUPPRESS
    )


def given(options: argparse.Namespace, name: str) -> Any:
    """The value of the option ``name`` as written; None if it was not given."""
    return vars(options)[name]


def check_options(options: argparse.Namespace) -> None:
    """The options that count must be numbers that this machine can hold.

    :raises BridgeError: for the first that is not.
    """
    for name, (pattern, argv) in _COUNTS.items():
        value = given(options, name)
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise BridgeError(
                f"{name} {value!r} is not {argv}.",
                evidence=f"{name} goes to torchrun",
                next=f"give {name} {argv}",
            )
    nodes = given(options, "--nnodes") or "1"
    _check_node(nodes, given(options, "--node-rank") or "0")
    least, _, most_nodes = nodes.partition(":")
    if most_nodes not in ("", least) and given(options, "--rdzv-backend") in (None, "static"):
        raise BridgeError(
            f"--nnodes {_shortened(nodes)} needs a rendezvous that nodes can join and leave.",
            evidence="without --rdzv-backend torchrun waits for a fixed number of nodes",
            next="add --rdzv-backend c10d --rdzv-endpoint HOST:PORT, or give --nnodes one number",
        )
    processes = given(options, "--nproc-per-node")
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _LEAST_MEMORY
    # Compared as texts first: Python refuses to read a number of thousands of digits.
    if processes and processes.isdigit() and (len(processes) > 9 or int(processes) > most):
        raise BridgeError(
            f"--nproc-per-node {_shortened(processes)} is more than this machine can hold.",
            evidence=f"its memory has room for {most} Pythons with torch",
            next=f"give --nproc-per-node as many as there are devices; on a CPU, at most its "
            f"{os.cpu_count()} cores are of use",
        )


def _check_node(nodes: str, rank: str) -> None:
    """A node beyond their number would wait for ever.

    :raises BridgeError: there is no such node.
    """
    most = nodes.rpartition(":")[2].lstrip("0")
    # Compared as texts: Python refuses to read a number of thousands of digits.
    if (len(own := rank.lstrip("0")), own) >= (len(most), most):
        raise BridgeError(
            f"--node-rank {_shortened(rank)} is not below --nnodes {_shortened(nodes)}.",
            evidence="nodes count from 0",
            next="give each node another --node-rank, from 0 to one less than --nnodes",
        )


def _shortened(text: str) -> str:
    return text if len(text) < 40 else f"{text[:36]}..."


def option_argv(options: argparse.Namespace) -> list[str]:
    """The options that were given, as words of a command line."""
    argv = []
    for name in OPTIONS:
        if given(options, name) is not None:
            argv += [name, given(options, name)]
    return [*argv, "--standalone"] if given(options, "--standalone") else argv


def start_command(options: argparse.Namespace, program: Sequence[str]) -> list[str]:
    """The command line that starts ``program`` on every rank.

    One process needs no torchrun, and starts sooner without it.

    :param options: parsed by a parser that :func:`add_options` extended.
    :param program: ``-m``, a module and its arguments.
    """
    argv = option_argv(options)
    if argv in ([], ["--nproc-per-node", "1"]) and not is_launched(os.environ):
        return [sys.executable, *program]
    if given(options, "--nnodes") is None and given(options, "--master-port") is None:
        # A free port, so that two runs on one machine do not collide.
        argv += [] if given(options, "--standalone") else ["--standalone"]
    return [sys.executable, "-m", MODULE, *argv, *program]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
