"""The CUDA backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from accel_bridge.backends._torch_build import installed_torch, package_version
from accel_bridge.backends.cuda._nvml import NvmlError, ask_nvml, watch_gpu
from accel_bridge.backends.cuda._probe import CudaProbe
from accel_bridge.backends.cuda._visible import VARIABLE, visible_gpus
from accel_bridge.device.backend import Backend, DeviceSpec, Features, Memory, Probe

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels


class CudaBackend(Backend):
    """NVIDIA GPUs, through torch.cuda."""

    name = "cuda"
    title = "NVIDIA GPU (CUDA)"
    priority = 20

    def __init__(self, probe: CudaProbe | None = None) -> None:
        self._probe = probe or CudaProbe()

    def probe(self) -> Probe:
        return self._probe.run()

    def device(self) -> DeviceSpec | None:
        """None: torch.cuda is the device."""
        return None

    def kernels(self) -> Kernels:
        from accel_bridge.backends.cuda.kernels import KERNELS

        return KERNELS

    @property
    def features(self) -> Features:
        return Features(torch_compile=True, cuda_graphs=True, triton=True)

    def environment(self) -> Mapping[str, str]:
        # One hardware queue: kernels start in the order they were issued, so that communication
        # overlaps with computation as tensor parallelism plans it.
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}

    def versions(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        build = installed_torch()
        if build is not None and build.cuda is not None:
            found["CUDA (torch)"] = build.cuda
            major = build.cuda.split(".")[0]
            for label, distribution in (("cuDNN", "nvidia-cudnn"), ("NCCL", "nvidia-nccl")):
                if installed := package_version(f"{distribution}-cu{major}"):
                    found[label] = installed
        try:
            found["driver"] = ask_nvml().driver
        except (OSError, NvmlError) as error:
            found["driver"] = f"unknown ({error})"
        return found

    def memory(self) -> tuple[Memory, ...]:
        try:
            gpus = visible_gpus(os.environ.get(VARIABLE), ask_nvml().gpus)
        except (OSError, NvmlError):
            return ()
        return tuple(
            Memory(gpu.free, gpu.memory)
            for gpu in gpus
            if gpu.memory is not None and gpu.free is not None
        )

    def watch(self) -> Callable[[], float | None] | None:
        import torch

        # Older versions of torch do not tell the UUID.
        uuid = getattr(torch.cuda.get_device_properties(), "uuid", None)
        return None if uuid is None else watch_gpu(f"GPU-{uuid}")
