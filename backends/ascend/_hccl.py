"""HCCL's environment variables, as a table: HCCL itself ignores or misreads a bad value."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from accel_bridge._errors import EnvironmentVariableError


@dataclass(frozen=True, slots=True)
class HcclVariable:
    """A variable that takes whole numbers or words.

    :param name: its full name.
    :param help: what it sets, with its unit.
    :param low: smallest number, or None if it takes words.
    :param high: largest number.
    :param words: the values, if it takes words.
    """

    name: str
    help: str
    low: int | None = None
    high: int = 0
    words: tuple[str, ...] = ()

    def check(self, text: str) -> None:
        """Check a value against what HCCL accepts.

        :raises EnvironmentVariableError: HCCL does not accept it.
        """
        if self.low is None:
            good, takes = text.lower() in self.words, ", ".join(self.words)
        else:
            good = text.isdecimal() and self.low <= int(text) <= self.high
            takes = f"{self.low} to {self.high}"
        if not good:
            raise EnvironmentVariableError(
                f"{self.name}={text!r} is not understood by HCCL",
                evidence=f"{self.name}, {self.help}, takes {takes}",
                next=f"unset {self.name}, or set it to one of these",
            )


#: Source: CANN, "Environment variable reference", collective communication; defaults in brackets.
VARIABLES: Final = (
    HcclVariable("HCCL_CONNECT_TIMEOUT", "seconds to wait for the other ranks (120)", 120, 7200),
    HcclVariable("HCCL_EXEC_TIMEOUT", "seconds that a collective may take (1836)", 0, 2147483647),
    HcclVariable("HCCL_BUFFSIZE", "MB of buffers of each group (200)", 1, 1 << 20),
    HcclVariable("P2P_HCCL_BUFFSIZE", "MB of buffers for send and receive (20)", 0, 1 << 20),
    HcclVariable(
        "HCCL_DETERMINISTIC", "sums in a fixed order (false)", words=("true", "false", "strict")
    ),
    HcclVariable("HCCL_INTRA_ROCE_ENABLE", "RoCE inside a server (0)", 0, 1),
    HcclVariable("HCCL_INTRA_PCIE_ENABLE", "PCIe inside a server (1)", 0, 1),
    HcclVariable("HCCL_WHITELIST_DISABLE", "no list of trusted hosts (1)", 0, 1),
)


def check_hccl(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that are set, checked.

    :raises EnvironmentVariableError: one has a value that HCCL does not accept.
    """
    found = {}
    for variable in VARIABLES:
        if text := environ.get(variable.name, "").strip():
            variable.check(text)
            found[variable.name] = text
    return found
