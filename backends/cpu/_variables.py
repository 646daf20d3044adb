"""The CPU backend's environment variables."""

from __future__ import annotations

from typing import Final

from accel_bridge.plugin import Variable


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError("it is no count")
    return int(text)


#: Programs that start processes themselves ask for the number of devices before.
DEVICES: Final = Variable(
    "ACCEL_BRIDGE_CPU_DEVICES",
    "1",
    "a count",
    "says how many devices a program finds that starts its processes itself",
    _count,
)
