"""What accel_bridge asks of a backend: is it there, what is its device, what are its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from accel_bridge.plugin import Backend, DeviceSpec, Features, Probe, Variable

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels

#: A real driver's device files are always in /dev; this lets you try the example without hardware.
DEVICES = Variable(
    "ACCEL_BRIDGE_QUIPU",
    "/dev",
    "a directory with device files",
    "says where the Quipu's device files are: quipu0, quipu1, ...",
    Path,
)


def device_files() -> list[Path]:
    """The device files, one for each Quipu."""
    return sorted(DEVICES.read().glob("quipu[0-9]*"))


class QuipuBackend(Backend):
    """The Quipu: a device type of its own, whose memory the processor can read."""

    name = "quipu"
    title = "Quipu"
    priority = 5
    #: Its tensors are no CUDA tensors: what only knows those is hidden from imports.
    hidden_modules = ("transformer_engine", "apex", "flash_attn")

    def probe(self) -> Probe:
        """Look for device files; no torch, no device context."""
        found = device_files()
        if not found:
            where = DEVICES.read()
            return Probe(
                False,
                f"no Quipu: no device file quipu0 in {where}",
                evidence=(f"looked for {where}/quipu0",),
                devices=0,
                remedy="load the driver: `sudo modprobe quipu`",
            )
        files = tuple(f"device file {path}" for path in found)
        return Probe(True, f"{len(found)} x Quipu", evidence=files, devices=len(found))

    def device(self) -> DeviceSpec:
        """What ``torch.cuda`` stands for: devices of the type ``quipu``."""
        from accel_bridge.device import (
            averages,
            flat_collectives,
            held_sends,
            host_generator,
            mixed_gathers,
            ordered_collectives,
            repeated_waits,
            uneven_gathers,
        )
        from quipu_bridge import communication, device

        device.register()
        communication.register()
        return DeviceSpec(
            type="quipu",
            # Implements torch.cuda.synchronize(), .memory_allocated() and the rest.
            module=device,
            # Replaces "nccl" in scripts.
            communication_backend=communication.NAME,
            pinned_memory=False,
            # Every call has finished when it returns.
            streams=False,
            # `Tensor.type()` says torch.quipu.FloatTensor.
            tensor_type="torch.quipu",
            parts=(
                # Dropout on the device draws from torch.default_generator.
                host_generator,
                # Messages go through gloo, which does less than NCCL.
                averages,
                mixed_gathers,
                flat_collectives,
                uneven_gathers,
                held_sends,
                ordered_collectives,
                repeated_waits,
            ),
        )

    def environment(self) -> Mapping[str, str]:
        """The Quipu ignores it; scripts written for CUDA check that it is set."""
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

    @property
    def features(self) -> Features:
        """Patches check these."""
        return Features(separate_rng=False)

    def kernels(self) -> Kernels:
        """At most one kernel per contract."""
        from quipu_bridge.kernels import KERNELS

        return KERNELS
