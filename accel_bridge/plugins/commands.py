"""What a command of ``accel-bridge`` is. Plugins bring them, the built-in ones included."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import explained

_NAME: Final = re.compile(r"[a-z][a-z0-9-]*")
_FUNCTION: Final = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    :param name: the word on the command line: lower case, digits and dashes.
    :param summary: what it does, in one line of ``accel-bridge --help``.
    :param function: ``module:function``, imported when the command is used. It takes the words
        after the name as they are, and returns the exit status.
    :param group: heading under which ``--help`` lists it.
    :raises ValueError: ``name`` or ``function`` does not look like one.
    """

    name: str
    summary: str
    function: str
    group: str = "More"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a command")
        if not _FUNCTION.fullmatch(self.function):
            raise ValueError(f"command {self.name!r}: {self.function!r} is not module:function")

    def run(self, argv: Sequence[str]) -> int:
        """Import the function and call it.

        :param argv: what stands after the command's name.
        :returns: the exit status.
        :raises BridgeError: the function cannot be imported, or needs a package that is missing.
        """
        module, _, name = self.function.partition(":")
        try:
            with explained():
                function: Callable[[list[str]], int] = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise BridgeError(
                f"The command {self.name!r} cannot be loaded.",
                evidence=f"{self.function}: {type(error).__name__}: {error}",
                next="`accel-bridge env` shows what is installed; ACCEL_BRIDGE_LOG=debug shows "
                "the traceback",
            ) from error
        with explained():
            return function(list(argv))
