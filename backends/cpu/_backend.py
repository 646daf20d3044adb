"""The CPU as a backend: always there, and the reference for the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from accel_bridge.backends._cuda_only import CUDA_ONLY
from accel_bridge.backends.cpu import _host
from accel_bridge.device.backend import Backend, DeviceSpec, Features, Memory, Probe

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernels


class CpuBackend(Backend):
    """Everything on the host, through the same redirection as an accelerator."""

    name: ClassVar[str] = "cpu"
    title = "CPU"
    priority: ClassVar[int] = 0
    #: fla's kernels are Triton's, which would be interpreted here.
    hidden_modules = (*CUDA_ONLY, "apex", "fla", "transformer_engine")

    def probe(self) -> Probe:
        """Always available; the evidence describes the host."""
        evidence = (
            f"{_host.model_name()}, {_host.cores()} of {os.cpu_count()} cores usable",
            f"{_host.memory_total() / 2**30:.1f} GiB memory",
            f"best instruction set: {_host.simd() or 'none that torch has kernels for'}",
        )
        return Probe(True, "a CPU is always available", evidence)

    def device(self) -> DeviceSpec:
        """The host behind the name ``torch.cuda``, with gloo behind ``nccl``."""
        import torch

        from accel_bridge.backends._triton import interpreted_triton
        from accel_bridge.backends.cpu import _device_module
        from accel_bridge.device import (
            Part,
            averages,
            first_of_equals,
            flat_collectives,
            float16_matmuls_in,
            held_sends,
            host_generator,
            materialized_flex_attention,
            mixed_gathers,
            ordered_collectives,
            repeated_waits,
            uneven_gathers,
        )

        # gloo's averages came after torch 2.6; its mixed gathers are wrong in torch 2.13, tensors
        # must have the shapes and sizes that it expects, it reads what it sends when the receiver
        # is ready, waits for a transfer only once, and runs two collectives at once.
        parts: list[Part] = [host_generator, averages, interpreted_triton]
        parts += [mixed_gathers, flat_collectives, uneven_gathers, held_sends, repeated_waits]
        parts += [ordered_collectives, first_of_equals, materialized_flex_attention]
        if not _host.has_float16():
            # Without float16 arithmetic a GEMM is 6 to 20 times slower than in float32.
            parts.append(float16_matmuls_in(torch.float32))

        return DeviceSpec(
            type="cpu",
            module=_device_module,
            communication_backend="gloo",
            pinned_memory=False,
            tensor_type="torch",
            indexed=False,
            streams=False,
            parts=tuple(parts),
        )

    @property
    def features(self) -> Features:
        """No compiler is assumed, and device tensors are host tensors."""
        return Features(torch_compile=False, separate_rng=False, tensors_on_host=True)

    def kernels(self) -> Kernels:
        """This backend's kernels."""
        from accel_bridge.backends.cpu.kernels import KERNELS

        return KERNELS

    def environment(self) -> Mapping[str, str]:
        """Variables that scripts written for CUDA check, and no assumed compiler.

        OMP_NUM_THREADS is left alone: torchrun sets it to 1 for several processes and reports it.
        Waiting threads sleep: spinning threads make a step ten times slower on busy cores.
        """
        return {
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            "TORCHDYNAMO_DISABLE": "1",
        }

    def memory(self) -> tuple[Memory, ...]:
        """The host's, which all ranks share."""
        return (Memory(_host.memory_available(), _host.memory_total()),)

    def versions(self) -> Mapping[str, str]:
        """Processor, instruction set and kernel."""
        return {
            "cpu": _host.model_name(),
            "cores": str(_host.cores()),
            "simd": _host.simd() or "none",
            "kernel": os.uname().release,
        }
