"""The variable with which the user decides about MindSpeed."""

from __future__ import annotations

from typing import Final, Literal

from accel_bridge.plugin import Variable, one_of

Mode = Literal["auto", "off", "require"]

MINDSPEED: Final[Variable[Mode]] = Variable(
    "ACCEL_BRIDGE_MINDSPEED",
    "auto",
    "auto, off or require",
    "hands an NPU over to MindSpeed: auto does so if it is installed and made for the installed "
    "Megatron, require insists, off keeps accel_bridge's own kernels",
    one_of("auto", "off", "require"),
)
