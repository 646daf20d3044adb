"""What is asked about libraries; dropout, allocation, and what is not here.

User buffers, NVSHMEM and NCCL's expert parallelism are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from accel_bridge.libraries.transformer_engine_torch import refuse

#: The newest that Transformer Engine 2.20 asks for: no feature is refused for an older one.
_CUBLASLT: Final = 130100
_CUDNN: Final = 92000


def get_cublasLt_version() -> int:
    """A version that has every feature: GEMMs are not cuBLAS's here."""
    return _CUBLASLT


def get_cudnn_version() -> int:
    """A version that has every feature: attention is not cuDNN's here."""
    return _CUDNN


@torch.no_grad()
def dropout_fwd(
    input: torch.Tensor, dropout_probability: float, out: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """[output, mask of what is kept], the output scaled by 1 / (1 - probability).

    :param input: any shape, plain or quantized.
    """
    x = input.dequantize() if hasattr(input, "_quantizer") else input
    mask = torch.rand(x.shape, device=x.device, dtype=torch.float32) >= dropout_probability
    kept = x * mask * (1 / (1 - dropout_probability) if dropout_probability < 1 else 0.0)
    return [kept.to(x.dtype) if out is None else out.copy_(kept), mask]


@torch.no_grad()
def dropout_bwd(
    grad_output: torch.Tensor,
    mask: torch.Tensor,
    dropout_probability: float,
    grad_input: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of :func:`dropout_fwd`."""
    factor = 1 / (1 - dropout_probability) if dropout_probability < 1 else 0.0
    grad = (grad_output * mask * factor).to(grad_output.dtype)
    return grad if grad_input is None else grad_input.copy_(grad)


def bulk_allocate(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[torch.dtype],
    device: torch.device | None = None,
    alignments: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    """Empty tensors, each with memory of its own."""
    place = torch.device("cuda") if device is None else device
    return [
        torch.empty(tuple(shape), dtype=dtype, device=place)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


class _Refused:
    """A class whose objects cannot be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse(type(self).__name__)


class CommOverlapHelper(_Refused): ...


class CommOverlapCore(_Refused): ...


class CommOverlapBase(CommOverlapCore): ...


class CommOverlapP2PBase(CommOverlapCore): ...


class CommOverlap(CommOverlapBase): ...


class CommOverlapP2P(CommOverlapP2PBase): ...


def device_supports_multicast(device_id: int = -1) -> bool:
    """No: user buffers are not served."""
    return False


def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    """Streams have no priorities."""
    return 0, 0


def ubuf_built_with_mpi() -> bool:
    """There is no MPI."""
    return False


def ep_zero_copy_supported() -> bool:
    """NCCL's expert parallelism is not served."""
    return False
