"""What stand-ins compute with: the active backend's kernels.

Imports torch, so only stand-ins import it.
"""

from __future__ import annotations

from typing import ParamSpec, TypeVar

from accel_bridge import _log
from accel_bridge._activation import current
from accel_bridge._attention_choice import CHOICE, AttentionChoice
from accel_bridge._backend import Features
from accel_bridge.kernels import Contract, Kernel, Kernels, Layout
from accel_bridge.kernels.spread_products import SpreadProducts, chosen_products

P = ParamSpec("P")
R = TypeVar("R")

#: What serves stand-ins that outlive their bridge: references only.
_NONE = Kernels()


def kernels() -> Kernels:
    """The active backend's kernels; none without an active bridge."""
    bridge = current()
    return _NONE if bridge is None else bridge.host.kernels


def kernel(contract: Contract[P, R]) -> Kernel[P, R]:
    """The active backend's kernel for ``contract``, or the contract's reference."""
    bridge = current()
    return (_NONE if bridge is None else bridge.host.kernels).resolve(contract)


def attention_layout() -> Layout:
    """The layout that the user wants the attention kernel to be called in for [s, b, n, d]."""
    bridge = current()
    return "SBHD" if bridge is None else bridge.host.once(CHOICE, AttentionChoice).layout


def spread_products() -> SpreadProducts | None:
    """The active backend's products fused with communication, if the user asked for them."""
    bridge = current()
    return None if bridge is None else chosen_products(bridge.host)


def features() -> Features:
    """What the active backend's device can do."""
    bridge = current()
    return Features() if bridge is None else bridge.host.features


def say_once(line: str) -> None:
    """Show ``line`` once in this process."""
    bridge = current()
    if bridge is None:
        _log.debug(line)
    else:
        bridge.host.say_once(line)
