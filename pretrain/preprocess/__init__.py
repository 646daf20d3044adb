"""Data preparation: text files in, Megatron's ``.bin``/``.idx`` out, byte for byte.

:func:`main` is ``accel-bridge preprocess`` and ``pretrain/preprocess_data.py``; it takes the
flags of Megatron-LM 0.19's ``tools/preprocess_data.py``. :func:`inspect_main` is
``accel-bridge inspect``, and :func:`tokenizer_main` is ``accel-bridge tokenizer``. None of them
imports torch or Megatron.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

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

    def run() -> int:
        arguments = _arguments.parse(argv)
        from .run import main

        return main(arguments)

    return _program(run, argv)


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """Print and check an ``.idx``/``.bin`` pair.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0 when the pair is sound, 1 when it is not, 2 for a wrong call.
    """

    def run() -> int:
        parsed = _arguments.parse_inspect(argv)
        from ._inspect import show

        return show(parsed)

    return _program(run, argv)


def tokenizer_main(argv: Sequence[str] | None = None) -> int:
    """Train a tokenizer.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0, or 2 for an error (printed).
    """

    def run() -> int:
        parsed = _arguments.parse_tokenizer(argv)
        from ._tokenizer_training import train

        return train(parsed)

    return _program(run, argv)


def _program(run: Callable[[], int], argv: Sequence[str] | None) -> int:
    """``run``'s exit status, its errors printed; these are programs as well as commands.

    What ``run`` imports may be missing, so this module imports none of it, and --help works.
    """
    try:
        if argv is None:
            open_streams()
        with explained():
            status = run()
        sys.stdout.flush()
    except BridgeError as error:
        return report(error)
    except KeyboardInterrupt as interrupt:  # before the run has handlers of its own
        return report(Interrupted(number_of(interrupt)))
    except ReaderGone:
        return READER_GONE
    return status
