"""The CUDA backend's kernels: torch's own and Triton's, with nothing to compile by hand."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from accel_bridge.backends.cuda import fused
from accel_bridge.backends.cuda.kernels.attention import ATTENTION
from accel_bridge.backends.cuda.kernels.elementwise import FUSED
from accel_bridge.backends.cuda.kernels.experts import GROUPED_MATMUL
from accel_bridge.backends.cuda.kernels.norms import LAYER_NORM, RMS_NORM
from accel_bridge.backends.cuda.kernels.optimizer import ADAMW, WEIGHT_GRADIENT
from accel_bridge.kernels import Kernel, reference_kernel


def _kernels(without_triton: str | None) -> Mapping[str, Kernel]:
    """Every kernel by its contract.

    :param without_triton: why Triton cannot be used, or None.
    """
    plain = (ATTENTION, LAYER_NORM, RMS_NORM, ADAMW, WEIGHT_GRADIENT, GROUPED_MATMUL)
    kernels = {kernel.contract: kernel for kernel in plain}
    for kernel in FUSED:
        kernels[kernel.contract] = (
            kernel if without_triton is None else reference_kernel(kernel.contract, without_triton)
        )
    return MappingProxyType(kernels)


#: Kernel by contract.
KERNELS: Final = _kernels(fused.missing())
