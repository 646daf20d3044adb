"""torchrun's command line: its own options, and how a module is started on every rank."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from accel_bridge.run import is_launched

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
    return [sys.executable, "-m", "torch.distributed.run", *words, *program]
