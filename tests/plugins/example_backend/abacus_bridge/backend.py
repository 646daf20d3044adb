"""The backend: how the Abacus is found, and which device and kernels it has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bridge import Backend, DeviceSpec, Features, Probe

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels


class AbacusBackend(Backend):
    """The Abacus: its memory is the host's, and its driver puts a file under /dev."""

    name = "abacus"
    title = "Abacus"
    priority = 5

    def probe(self) -> Probe:
        """Look for the device file; no torch, no device context."""
        # A real backend looks at one place; the variable lets you try this one without hardware.
        device = Path(os.environ.get("ABACUS_DEVICE", "/dev/abacus0"))
        if not device.exists():
            return Probe(
                False,
                f"no Abacus: {device} is missing",
                evidence=(f"looked for {device}",),
                devices=0,
                remedy="load the driver: `sudo modprobe abacus`",
            )
        return Probe(True, "1 x Abacus", evidence=(f"device file {device}",), devices=1)

    def device(self) -> DeviceSpec:
        """What stands behind ``torch.cuda``. The Abacus has no torch module: it uses the host's.

        A real one names the vendor's: ``DeviceSpec(type="xpu", module=torch.xpu,
        communication_backend="xccl", pinned_memory=True, tensor_type="torch.xpu")``, with
        ``import torch`` inside this method.
        """
        from accel_bridge.backends.cpu.plugin import CpuBackend

        return CpuBackend().device()

    @property
    def features(self) -> Features:
        """Patches decide by these."""
        return Features(separate_rng=False, tensors_on_host=True)

    def kernels(self) -> Kernels:
        """At most one kernel of each contract; a contract that is left out is not patched."""
        from abacus_bridge.kernels import KERNELS

        return KERNELS
