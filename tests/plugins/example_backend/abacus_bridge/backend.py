"""The backend: how the Abacus is found, and which device and kernels it has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from accel_bridge.plugin import Backend, DeviceSpec, Features, Probe, Variable

if TYPE_CHECKING:
    from accel_bridge.plugin import Kernels

#: A real backend looks in one place; this lets you try the example without hardware.
DEVICE = Variable(
    "ACCEL_BRIDGE_ABACUS",
    "/dev/abacus0",
    "the path of a device file",
    "says where the Abacus is",
    Path,
)


class AbacusBackend(Backend):
    """The Abacus: its memory is the host's, and its driver puts a file under /dev."""

    name = "abacus"
    title = "Abacus"
    priority = 5

    def probe(self) -> Probe:
        """Look for the device file; no torch, no device context."""
        device = DEVICE.read()
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
        """What ``torch.cuda`` stands for: the Abacus computes in the host's memory."""
        from abacus_bridge import device
        from accel_bridge.device import averages, host_generator

        return DeviceSpec(
            type="cpu",
            module=device,
            communication_backend="gloo",
            pinned_memory=False,
            streams=False,
            # `Tensor.type()` says torch.FloatTensor.
            tensor_type="torch",
            indexed=False,
            parts=(averages, host_generator),
        )

    @property
    def features(self) -> Features:
        """Patches check these."""
        return Features(separate_rng=False, tensors_on_host=True)

    def kernels(self) -> Kernels:
        """At most one kernel per contract; a contract without a kernel is not patched."""
        from abacus_bridge.kernels import KERNELS

        return KERNELS
