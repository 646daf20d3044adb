"""Checks of a training against the devices that are here, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from accel_bridge.plugins.checks import Check
from accel_bridge.plugins.findings import Finding, fails
from accel_bridge.plugins.machine import Machine


def _ranks(machine: Machine) -> Iterator[Finding]:
    run, probe = machine.run, machine.probe
    if run is None or probe is None or probe.devices is None:
        return
    if run.processes > probe.devices:
        yield fails(
            f"{run.processes} ranks would share {probe.devices} "
            f"device{'s' * (probe.devices != 1)}, and the first collective would hang",
            f"--nproc-per-node {run.processes}",
            *probe.evidence,
            next=f"--nproc-per-node {probe.devices}, or ACCEL_BRIDGE_BACKEND=cpu",
        )


CHECKS: Final = (
    Check("ranks", "Training", "more ranks on this machine than devices", _ranks, with_run=True),
)
