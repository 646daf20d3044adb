"""The command line of ``accel-bridge inspect``; --help needs no package of an extra."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from accel_bridge.process.parser import Parser

from .errors import UsageError
from .tokenizer_flags import add_tokenizer

_MOST = 2**31 - 1


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check a command line.

    :raises UsageError: a number is out of range.
    """
    parsed = _parser().parse_args(argv)
    _check(parsed)
    return parsed


def _check(parsed: argparse.Namespace) -> None:
    least = {
        "vocab_size": 1,
        "tiktoken_num_special_tokens": 1,
        "samples": 0,
        "sample_tokens": 0,
    }
    for flag, smallest in least.items():
        value = getattr(parsed, flag)
        if value is not None and not smallest <= value <= _MOST:
            name = "--" + flag.replace("_", "-")
            raise UsageError(
                f"{name} must be at least {smallest}, and at most {_MOST}",
                evidence=f"{name} {value}",
                next=f"pass {name} a number in that range, or leave it out",
            )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="accel-bridge inspect", description="Print and check an .idx/.bin pair.")
    parser.add_argument("prefix", help="path of the pair, with or without suffix")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--samples", type=int, default=1, help="documents to show")
    parser.add_argument("--sample-tokens", type=int, default=32, help="ids of each to show")
    add_tokenizer(
        parser.add_argument_group(
            "tokenizer",
            "as for `preprocess`: it decodes the samples, and every id must be below --vocab-size",
        ),
        required=False,
    )
    return parser
