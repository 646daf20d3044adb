"""The check of `accel-bridge doctor` for MindSpeed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from accel_bridge.patches._installed import megatrons
from accel_bridge.patches.mindspeed._delegation import RELEASES
from accel_bridge.plugins.checks import Check, Finding, Machine, warning


def _mindspeed(machine: Machine) -> Iterator[Finding]:
    """MindSpeed changes the Megatron that it was made for, and breaks others."""
    version, found = machine.version("mindspeed"), megatrons(machine.spec)
    if version is None or not found or found[0].version is None or machine.backend is None:
        return
    made_for = ".".join(version.split(".")[:2])
    used = ".".join(found[0].version.split(".")[:2])
    if "mindspeed" in machine.backend.adaptors and made_for != used:
        yield warning(
            f"MindSpeed {version} is not for Megatron {found[0].version}, and is left out",
            f"it is for Megatron {made_for}; {found[0].directory} is {used}",
            f"releases of MindSpeed are known for Megatron {', '.join(RELEASES)}",
            next="the bridge's own kernels are used; for MindSpeed install Megatron "
            f"{made_for}, or the MindSpeed for {used}",
        )


CHECKS: Final = (
    Check("mindspeed", "Megatron", "a MindSpeed for another Megatron, on an NPU", _mindspeed),
)
