"""A command line's parser whose complaints are errors in three parts."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any, Final, NoReturn

from accel_bridge.errors import BridgeError


class CommandLineError(BridgeError):
    """The words after a command make no sense."""


#: Called with the parser of a command, in place of parsing, while a shell asks for completion.
COMPLETING: Final[list[Callable[[argparse.ArgumentParser], object]]] = []


class Parser(argparse.ArgumentParser):
    """``argparse`` with our errors; its usage lines are shown by ``--help``."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; ``parse_args`` comes here too."""
        while COMPLETING:
            COMPLETING.pop()(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Argparse calls this for whatever it does not take.

        :raises CommandLineError: always.
        """
        raise CommandLineError(
            f"{self.prog}: the command line cannot be used.",
            evidence=message,
            next=f"{self.prog} --help",
        )


def positive(text: str) -> int:
    """The type of an option that takes a whole number from 1."""
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")


def seconds(text: str) -> float:
    """The type of an option that takes a time to wait, up to an hour."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 3600:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and up to 3600")


def amount(text: str) -> float:
    """The type of an option that takes a finite number above 0."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
