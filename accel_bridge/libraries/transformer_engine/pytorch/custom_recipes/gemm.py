"""Products of tensors that a user's quantizer made: the quantizer computes them.

Such a tensor has ``custom = True``, numbers ``data`` and ``data_t`` [rows, k], their scales
``scale`` and ``scale_t``, ``original_shape``, and its quantizer in ``_quantizer``.
"""

from __future__ import annotations

from typing import Any

import torch

from .quantization import GEMMType, MMParams


def custom_gemm(
    A: Any,
    B: Any,
    workspace: Any,
    out_dtype: torch.dtype | None = None,
    quantization_params: Any = None,
    gelu: bool = False,
    gelu_in: torch.Tensor | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
) -> tuple[torch.Tensor, None, None, None]:
    """``general_gemm`` of two such tensors.

    :raises AssertionError: one of them is not such a tensor, or lacks the copy that is needed.
    :raises ValueError: neither has a quantizer.
    """
    assert getattr(A, "custom", False), "A and B must be custom tensors"
    assert getattr(B, "custom", False), "A and B must be custom tensors"
    kind = {"NN": GEMMType.DGRAD, "NT": GEMMType.WGRAD}.get(layout if grad else "", GEMMType.FPROP)
    quantizer = getattr(B, "_quantizer", None) or getattr(A, "_quantizer", None)
    if quantizer is None:
        raise ValueError("No quantizer found in QuantizedTensor objects")
    x_copy = "_t" if kind is GEMMType.WGRAD else ""
    w_copy = "" if kind is GEMMType.FPROP else "_t"
    operands = [getattr(B, f"data{x_copy}"), getattr(A, f"data{w_copy}")]
    scales = [getattr(B, f"scale{x_copy}"), getattr(A, f"scale{w_copy}")]
    for part in (*operands, *scales):
        assert part is not None, f"a copy that {kind.value} needs is missing"
    result = quantizer.qgemm(
        *operands,
        MMParams(out_dtype=out_dtype, use_split_accumulator=use_split_accumulator),
        B.dtype if out_dtype is None else out_dtype,
        *scales,
        bias if kind is GEMMType.FPROP else None,
        gemm_type=kind,
        qresult_x=B,
        qresult_w=A,
    )
    if kind is GEMMType.FPROP and len(B.original_shape) > 2:
        result = result.view(*B.original_shape[:-1], result.shape[-1])
    if out is not None:
        result = out.add_(result) if accumulate else out.copy_(result)
    return result, None, None, None
