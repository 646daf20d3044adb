"""torchrun's command line: its own options, and how a module is started on every rank."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.ranks import is_launched

#: The module that is torchrun, and says how a rank ended.
LAUNCHER: Final = "accel_bridge.process.launch"
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
    for name, (pattern, words) in _COUNTS.items():
        value = given(options, name)
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise BridgeError(
                f"{name} {value!r} is not {words}.",
                evidence=f"{name} goes to torchrun",
                next=f"give {name} {words}",
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


def option_words(options: argparse.Namespace) -> list[str]:
    """The options that were given, as words of a command line."""
    words = []
    for name in OPTIONS:
        if given(options, name) is not None:
            words += [name, given(options, name)]
    return [*words, "--standalone"] if given(options, "--standalone") else words


def start_command(options: argparse.Namespace, program: Sequence[str]) -> list[str]:
    """The command line that starts ``program`` on every rank.

    One process needs no torchrun, and starts sooner without it.

    :param options: parsed by a parser that :func:`add_options` extended.
    :param program: ``-m``, a module and its arguments.
    """
    words = option_words(options)
    if words in ([], ["--nproc-per-node", "1"]) and not is_launched(os.environ):
        return [sys.executable, *program]
    if given(options, "--nnodes") is None and given(options, "--master-port") is None:
        # A free port, so that two runs on one machine do not collide.
        words += [] if given(options, "--standalone") else ["--standalone"]
    return [sys.executable, "-m", LAUNCHER, *words, *program]
