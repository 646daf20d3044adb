"""A command line's parser whose complaints are errors in three parts."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from accel_bridge.errors import BridgeError
from accel_bridge.process.environment import did_you_mean


class CommandLineError(BridgeError):
    """The words after a command make no sense."""


#: Columns of a help text on a terminal that has more.
WIDEST: Final = 100

#: Characters of choices that an option shows beside itself.
_CHOICES: Final = 60

#: Called with the parser of a command, in place of parsing, while a shell asks for completion.
COMPLETING: Final[list[Callable[[argparse.ArgumentParser], object]]] = []


class _Formatter(argparse.HelpFormatter):
    """Long lists of choices stand in the help, and long spellings one below the other."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        text = super()._format_args(action, default_metavar)
        # `NAME [NAME ...]` of a long name is one word that no line could hold.
        return text if len(text) <= _CHOICES else f"{default_metavar} ..."

    def _metavar_formatter(self, action: argparse.Action, default: str) -> Any:
        if action.choices is not None and len(",".join(map(str, action.choices))) > _CHOICES:
            return lambda size: (action.metavar or action.dest.upper(),) * size
        return super()._metavar_formatter(action, default)

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        if action.choices is not None and len(",".join(map(str, action.choices))) > _CHOICES:
            text += f"; one of {', '.join(map(str, action.choices))}"
        return text

    def _format_action_invocation(self, action: argparse.Action) -> str:
        line = super()._format_action_invocation(action)
        if len(line) > self._width - 2 and action.option_strings:
            return ",\n  ".join(action.option_strings)
        return line


class Parser(argparse.ArgumentParser):
    """``argparse`` with our errors; its usage lines are shown by ``--help``."""

    def _get_formatter(self) -> argparse.HelpFormatter:
        """Lines as wide as the terminal, and no wider than can be read."""
        columns = min(shutil.get_terminal_size().columns, WIDEST)
        if self.formatter_class is argparse.HelpFormatter:
            return _Formatter(self.prog, width=columns - 2)
        return self.formatter_class(prog=self.prog)

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
            evidence=message + self._nearest(message),
            next=f"{self.prog} --help",
        )

    def _nearest(self, message: str) -> str:
        """What was probably meant, where the message names a word that is not known."""
        if found := re.search(r"invalid choice: '([^']+)' \(choose from (.*)\)", message):
            known = re.findall(r"[^\s,']+", found[2])
        elif found := re.search(r"unrecognized arguments: (--[\w-]+)", message):
            known = [word for action in self._actions for word in action.option_strings]
        else:
            return ""
        return did_you_mean(found[1], known)


def parted(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first ``--``, and those behind it."""
    place = [*argv, "--"].index("--")
    return list(argv[:place]), list(argv[place + 1 :])


#: More of anything that is counted is a slip of the finger.
_MOST: Final = 2**31 - 1


def positive(text: str, least: int = 1, most: int = _MOST) -> int:
    """The type of an option that takes a whole number from 1."""
    with contextlib.suppress(ValueError):
        if least <= int(text) <= most:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {most}")


def is_number(text: str) -> bool:
    """Whether a word is a number: in a list of data sets, the weight of the one behind it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


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
