"""HCCL's environment variables, as a table: HCCL itself ignores or misreads a bad value."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from accel_bridge.errors import EnvironmentVariableError


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


_BASE_PORT: Final = "HCCL_IF_BASE_PORT"
_PORT_RANGE: Final = "HCCL_HOST_SOCKET_PORT_RANGE"
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
    HcclVariable(_BASE_PORT, "the first of 16 ports of the host (60000)", 1024, 65520),
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


def host_ports(environ: Mapping[str, str] = os.environ) -> tuple[str, frozenset[int]]:
    """The variable that says on which ports of the host HCCL meets, and the ports.

    ``HCCL_HOST_SOCKET_PORT_RANGE`` (``60000,60050-60100`` or ``auto``, which are no certain ones)
    comes before ``HCCL_IF_BASE_PORT``. Source: as of :data:`VARIABLES`.

    :raises EnvironmentVariableError: HCCL does not understand one of them.
    """
    if text := environ.get(_PORT_RANGE, "").strip():
        return _PORT_RANGE, frozenset(_ports(text))
    check_hccl(environ)
    first = int(environ.get(_BASE_PORT, "").strip() or 60000)
    return _BASE_PORT, frozenset(range(first, first + 16))


def _ports(text: str) -> Iterator[int]:
    for part in text.split(",") if text != "auto" else ():
        ends = [end.strip() for end in part.split("-")]
        numbers = [int(end) for end in ends if end.isdecimal()]
        known = len(numbers) == len(ends) <= 2
        if not known or not 1 <= numbers[0] <= numbers[-1] <= 65535:
            raise EnvironmentVariableError(
                f"{_PORT_RANGE}={text!r} is not understood by HCCL",
                evidence=f"{part!r} is neither a port nor a range of ports, 1 to 65535",
                next=f"export {_PORT_RANGE}=60000-60050, or auto",
            )
        yield from range(numbers[0], numbers[-1] + 1)
