"""Environment variables of the patches. Every command reads them, so this imports no patch."""

from __future__ import annotations

from typing import Final

from accel_bridge.process.environment import Variable


def _on_or_off(text: str) -> bool:
    if text.lower() not in ("on", "off"):
        raise ValueError("it takes on or off")
    return text.lower() == "on"


CHECKSUMS: Final = Variable(
    "ACCEL_BRIDGE_CHECKSUMS",
    "on",
    "on or off",
    "writes SHA-256 sums beside each distributed checkpoint and compares them when it is loaded",
    _on_or_off,
)


def _when(text: str) -> str:
    if text.lower() not in ("auto", "on", "off"):
        raise ValueError("it takes auto, on or off")
    return text.lower()


FUSED_OUTPUT: Final = Variable(
    "ACCEL_BRIDGE_LINEAR_CROSS_ENTROPY",
    "auto",
    "auto, on or off",
    "computes output layer and loss some tokens at a time, without the logits; auto: where that "
    "takes at most 3/4 of their memory",
    _when,
)
