"""Matrix products of plain and of quantized tensors.

The library names operands as a column-major one does: with layout ``TN`` the result is ``B @ A^T``,
with ``NN`` it is ``B @ A``, and with ``NT`` it is ``B^T @ A``: a linear layer's output, its input's
gradient and its weight's gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from ..constants import TE_DType_To_Torch
from ..quantized_tensor import Quantizer
from ._grouped import general_grouped_gemm, te_general_grouped_gemm
from ._products import general_gemm, validate_gemm_scale
from ._versions import get_num_cublas_streams

__all__ = [
    "general_gemm",
    "general_grouped_gemm",
    "generic_gemm",
    "get_cublas_workspace",
    "get_cublas_workspace_size_bytes",
    "te_general_grouped_gemm",
    "validate_gemm_scale",
]


def get_cublas_workspace_size_bytes() -> int:
    """Torch owns the workspaces of its products; nothing more is needed."""
    return 0


class _Workspaces:
    """Torch's products bring their own workspace: this one is empty, and so is its cache."""

    def __call__(
        self, device: int | torch.device, ub: bool, grouped_gemm: bool
    ) -> torch.Tensor | list[torch.Tensor]:
        empty = torch.empty(0, dtype=torch.uint8, device=device)
        return [empty] * get_num_cublas_streams() if grouped_gemm else empty

    def cache_clear(self) -> None:
        """Nothing is kept."""


get_cublas_workspace = _Workspaces()


def generic_gemm(
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: torch.Tensor | None,
    quantizer: Quantizer | None,
    output_dtype: Any,
    bias: torch.Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: torch.Tensor | None,
    grad: bool,
    workspace: torch.Tensor | None,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    """The compiled extension's form of :func:`general_gemm`."""
    return list(
        general_gemm(
            A,
            B,
            out_dtype=None if output_dtype is None else TE_DType_To_Torch[output_dtype],
            quantization_params=quantizer,
            gelu=gelu,
            gelu_in=gelu_in,
            alpha=alpha,
            beta=beta if accumulate else None,
            accumulate=accumulate,
            layout=("T" if transA else "N") + ("T" if transB else "N"),
            out=D,
            bias=bias,
            use_split_accumulator=use_split_accumulator,
            grad=grad,
            ub=comm_overlap,
            ub_type=comm_type,
            extra_output=extra_output,
            bulk_overlap=bulk_overlap,
        )
    )
