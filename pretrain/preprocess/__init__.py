"""Data preparation: text files in, Megatron's ``.bin``/``.idx`` out, byte for byte.

:func:`main` is ``accel-bridge preprocess`` and ``pretrain/preprocess_data.py``; it takes the
flags of Megatron-LM 0.19's ``tools/preprocess_data.py``. :func:`inspect_main` is
``accel-bridge inspect``. Neither imports torch or Megatron.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accel_bridge._extras import MissingPackage, explained
from accel_bridge._outputs import report

__all__ = ["inspect_main", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Preprocess a corpus.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0, or 2 for an error (printed), 130 or 143 after SIGINT or SIGTERM.
    """

    def run() -> int:
        from ._run import main

        return main(argv)

    return _explained(run)


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """Print and check an ``.idx``/``.bin`` pair.

    :param argv: command line without the program name; ``None`` takes ``sys.argv``.
    :return: exit status: 0 when the pair is sound, 1 when it is not, 2 for a wrong call.
    """

    def run() -> int:
        from ._inspect import main

        return main(argv)

    return _explained(run)


def _explained(run: Callable[[], int]) -> int:
    """``run``'s exit status; a package that is missing is named (these are programs as well)."""
    try:
        with explained():
            return run()
    except MissingPackage as error:
        return report(error)
