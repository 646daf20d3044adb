"""The Ascend backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from accel_bridge.backends._cuda_only import CUDA_ONLY
from accel_bridge.backends._torch_build import package_version
from accel_bridge.backends.ascend._compatibility import (
    TRANSFORMER_ENGINE,
    foreign_transformer_engine,
)
from accel_bridge.backends.ascend._emulation import LABEL
from accel_bridge.backends.ascend._hccl import check_hccl
from accel_bridge.backends.ascend._probe import AscendProbe
from accel_bridge.backends.ascend._site import explanations
from accel_bridge.device.backend import Backend, DeviceSpec, Memory, Probe

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels
    from accel_bridge.kernels.comm_gemm_overlap import CommGemmOverlap


class AscendBackend(Backend):
    """Huawei Ascend NPUs, through torch_npu."""

    name = "ascend"
    title = "Huawei Ascend NPU"
    adaptors = ("mindspeed",)
    trials = (("limits", 120, ("ascend-limits", "--json", "limits.json")),)
    priority = 10

    def __init__(self, probe: AscendProbe | None = None) -> None:
        self._probe = probe or AscendProbe()
        if self._probe.emulated:
            self.title = f"{type(self).title} ({LABEL})"

    def probe(self) -> Probe:
        return self._probe.run()

    def device(self) -> DeviceSpec | None:
        """``npu``, with HCCL for communication; imports torch_npu.

        :raises EnvironmentVariableError: an HCCL variable has a value that HCCL does not accept.
        """
        check_hccl()
        import torch
        import torch_npu  # noqa: F401  (it puts `npu` into torch)

        from accel_bridge.backends._triton import interpreted_triton
        from accel_bridge.backends.ascend.kernels.gated import gelu
        from accel_bridge.device import Part, Renamed, functions, wide_reductions

        # torch_npu's own gelu ignores `approximate` and computes the tanh form.
        parts: list[Part] = [functions(gelu=gelu), wide_reductions]
        if self._probe.emulated:  # a real one has triton-ascend
            parts.append(interpreted_triton)
        return DeviceSpec(
            type="npu",
            module=Renamed(
                vars(torch)["npu"],
                CUDAGraph="NPUGraph",
                CUDAPluggableAllocator="NPUPluggableAllocator",
            ),
            communication_backend="hccl",
            pinned_memory=True,
            tensor_type="torch.npu",
            parts=tuple(parts),
        )

    def kernels(self) -> Kernels:
        from accel_bridge.backends.ascend.kernels import KERNELS

        return KERNELS

    def comm_gemm_overlap(self) -> CommGemmOverlap:
        from accel_bridge.backends.ascend.kernels.comm_gemm_overlap import GEMMS

        return GEMMS

    @property
    def hidden_modules(self) -> tuple[str, ...]:  # type: ignore[override]
        """What only works with CUDA, and NVIDIA's Transformer Engine.

        Apex and fla have versions for NPUs under the same names.

        :raises TwoTransformerEnginesError: the NPU version is installed over it.
        """
        return (*CUDA_ONLY, TRANSFORMER_ENGINE) if foreign_transformer_engine() else CUDA_ONLY

    def environment(self) -> Mapping[str, str]:
        return {
            # NPUs ignore it; scripts written for CUDA check that it is set.
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            # What get_device_capability answers; without it, None and a warning.
            "TORCH_NPU_DEVICE_CAPABILITY": "8.0",
        }

    def explain(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        return explanations(environ)

    def memory(self) -> tuple[Memory, ...]:
        return tuple(Memory(free, total) for free, total in self._probe.memory())

    def versions(self) -> Mapping[str, str]:
        found = {"driver": self._probe.driver(), "torch_npu": package_version("torch-npu")}
        if cann := self._probe.cann():
            found["CANN"] = cann[1]
        return {name: value for name, value in found.items() if value}
