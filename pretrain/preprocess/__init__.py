"""Data preparation: text files in, Megatron's ``.bin``/``.idx`` out, byte for byte.

:func:`main` is ``accel-bridge preprocess`` and ``pretrain/preprocess_data.py``; it takes the
flags of Megatron-LM 0.19's ``tools/preprocess_data.py``. :func:`inspect_main` is
``accel-bridge inspect``, and :func:`tokenizer_main` is ``accel-bridge tokenizer``. None of them
imports torch or Megatron.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import number_of
from accel_bridge.process.extras import explained
from accel_bridge.process.log import READER_GONE, ReaderGone, open_streams, report

from . import _arguments
from .errors import Interrupted

__all__ = ["inspect_main", "main", "tokenizer_main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Preprocess a corpus.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0, or 2 for an error (printed), 130 or 143 after SIGINT or SIGTERM.
    """
    return _program(argv, _arguments.parse, ".run")


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """Print and check an ``.idx``/``.bin`` pair.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0 when the pair is sound, 1 when it is not, 2 for a wrong call.
    """
    return _program(argv, _arguments.parse_inspect, "._inspect")


def tokenizer_main(argv: Sequence[str] | None = None) -> int:
    """Train a tokenizer.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0, or 2 for an error (printed).
    """
    return _program(argv, _arguments.parse_tokenizer, "._tokenizer_training")


def _program(
    argv: Sequence[str] | None, parse: Callable[[Sequence[str] | None], Any], module: str
) -> int:
    """The exit status of a module's ``main``, errors printed: programs as well as commands.

    What it imports may be missing, so this module imports none of it, and --help works.
    """
    try:
        if argv is None:
            open_streams()
        with explained():
            parsed = parse(argv)
            status: int = import_module(module, __package__).main(parsed)
        sys.stdout.flush()
    except BridgeError as error:
        return report(error)
    except KeyboardInterrupt as interrupt:  # before the run has handlers of its own
        return report(Interrupted(number_of(interrupt)))
    except ReaderGone:
        return READER_GONE
    return status
