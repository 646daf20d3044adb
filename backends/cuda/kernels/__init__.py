"""The CUDA backend's kernels: torch's own and Triton's, with nothing to compile by hand."""

from __future__ import annotations

from typing import Any, Final

from accel_bridge.backends.cuda import fused
from accel_bridge.backends.cuda.kernels import (
    attention,
    elementwise,
    experts,
    float8,
    grouped_float8,
    max_logit,
    norms,
    optimizer,
    sequences,
)
from accel_bridge.kernels import Kernel, Kernels, reference_kernel


def _kernels(without_triton: str | None) -> Kernels:
    """Every kernel.

    :param without_triton: why Triton cannot be used, or None.
    """
    made_by_triton: tuple[Kernel[Any, Any], ...] = (
        *elementwise.KERNELS,
        *float8.KERNELS,
        *grouped_float8.KERNELS,
        *max_logit.KERNELS,
        *sequences.TRITON,
        *experts.MOVES,
    )
    if without_triton is not None:
        made_by_triton = tuple(
            reference_kernel(kernel.contract, without_triton) for kernel in made_by_triton
        )
    return Kernels(
        *attention.KERNELS,
        *norms.KERNELS,
        *optimizer.KERNELS,
        *experts.KERNELS,
        *sequences.KERNELS,
        *made_by_triton,
        float8.PRODUCT,
    )


KERNELS: Final = _kernels(fused.missing())
