"""``accel-bridge demo``: the whole way on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from accel_bridge.apps.demo import run_demo
from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import number_of
from accel_bridge.process.parser import Parser

#: More iterations of so small a model are a slip of the finger.
_MOST = 1_000_000


class Interrupted(BridgeError):
    """Ctrl-C, SIGTERM or SIGHUP ended the demo."""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge demo",
        description="Offline, in about two minutes: takes the sources of Python's standard "
        "library as text, trains a tokenizer, makes a data set, trains a small GPT on the "
        "hardware that was found, saves a checkpoint, resumes from it, and draws the loss curve. "
        "Every command is written to commands.sh.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("accel-bridge-demo"),
        help="directory for everything it writes (default: %(default)s)",
    )
    parser.add_argument(
        "--iterations", type=_count, default=150, help="before the resume (default: 150)"
    )
    parser.add_argument("--resumed", type=_count, default=50, help="after the resume (default: 50)")
    return parser


def main(words: Sequence[str]) -> int:
    """Run the demo.

    :raises BridgeError: it cannot be finished, or was interrupted.
    """
    arguments = _parser().parse_args(words)
    try:
        run_demo(arguments.out, arguments.iterations, arguments.resumed)
    except KeyboardInterrupt as interrupt:
        ended = Interrupted(
            "The demo was interrupted.",
            evidence=f"what it had made is in {arguments.out}",
            next="run the same command again: it begins anew",
        )
        ended.exit_code = 128 + number_of(interrupt)
        raise ended from None
    return 0


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text[:20]) <= _MOST:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to {_MOST}, not {text[:40]!r}")
    return int(text)
