"""``accel-bridge demo``: the whole way on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from accel_bridge.apps.cli._output import command_parser
from accel_bridge.apps.demo import run_demo


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "demo",
        "Offline, in about two minutes: takes the sources of Python's standard "
        "library as text, trains a tokenizer, makes a data set, trains a small GPT on the "
        "hardware that was found, saves a checkpoint, resumes from it, and draws the loss curve. "
        "Every command is written to commands.sh.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("accel-bridge-demo"),
        help="folder for everything it writes (default: %(default)s)",
    )
    parser.add_argument(
        "--iterations", type=_positive, default=150, help="before the resume (default: 150)"
    )
    parser.add_argument(
        "--resumed", type=_positive, default=50, help="after the resume (default: 50)"
    )
    return parser


def main(words: Sequence[str]) -> int:
    """Run the demo."""
    arguments = _parser().parse_args(words)
    run_demo(arguments.out, arguments.iterations, arguments.resumed)
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
