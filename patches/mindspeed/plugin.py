"""The plugin for MindSpeed and for the flags of Ascend scripts, on every backend.

Loading it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel_bridge.patches.mindspeed._delegation import MINDSPEED
from accel_bridge.plugin import hookimpl

if TYPE_CHECKING:
    from accel_bridge.plugin import Adaptor, Backend, Check, Delegation, Patch, Variable


@hookimpl
def accel_bridge_variables() -> list[Variable[Any]]:
    """Whether an NPU may be handed over."""
    return [MINDSPEED]


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """The flags of Ascend scripts in Megatron's parser."""
    from accel_bridge.patches.mindspeed import instruction_data, lora, script_flags

    return [*script_flags.PATCHES, *instruction_data.PATCHES, *lora.PATCHES]


@hookimpl
def accel_bridge_delegations(backend: Backend) -> list[Delegation]:
    """MindSpeed, on the devices that it supports."""
    from accel_bridge.patches.mindspeed import _delegation

    return _delegation.delegations(backend, MINDSPEED.read())


@hookimpl
def accel_bridge_adaptors(backend: Backend) -> list[Adaptor]:
    """MindSpeed and what is built like it, where the device is not theirs."""
    from accel_bridge.patches.mindspeed import _delegation

    return _delegation.adaptors(backend, MINDSPEED.read())


@hookimpl
def accel_bridge_checks() -> list[Check]:
    """A MindSpeed for another Megatron."""
    from accel_bridge.patches.mindspeed import checks

    return list(checks.CHECKS)
