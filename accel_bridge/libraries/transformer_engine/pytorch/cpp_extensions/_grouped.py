"""The products of several weights, each with its own rows.

Legend: e experts, t rows of all of them, k input size, n output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import GROUPED_MATMUL, active
from accel_bridge.libraries.transformer_engine_torch._tensors import joined, stacked

from ..quantized_tensor import QuantizedTensorStorage
from ._products import general_gemm

#: From this many rows per expert on, separate products fill a device as well as a grouped one.
MANY: Final = 1024


def _in_one_launch(
    A: Sequence[torch.Tensor], B: Sequence[torch.Tensor], out: torch.Tensor, layout: str
) -> bool:
    """Compute every ``B[i] @ A[i]^T`` (TN) or ``B[i] @ A[i]`` (NN) at once, if that is possible."""
    counts = [part.shape[0] for part in B]
    if sum(counts) >= MANY * len(counts) or A[0].dtype != out.dtype:
        return False
    weight = stacked(A)
    rows = None if weight is None else joined(B)
    if weight is None or rows is None:
        return False
    matrix = weight.transpose(1, 2) if layout == "TN" else weight
    out.copy_(active.kernel(GROUPED_MATMUL)(rows, matrix, torch.tensor(counts)))
    return True


def general_grouped_gemm(
    A: list[Any],
    B: list[Any],
    out: list[torch.Tensor],
    quantization_params: list[Any] | None,
    out_dtype: torch.dtype,
    layout: str = "TN",
    m_splits: list[int] | None = None,
    gelu: bool = False,
    grad: bool = False,
    accumulate: bool = False,
    bias: list[torch.Tensor] | None = None,
    use_bias: bool = False,
    use_split_accumulator: bool = False,
    D_dtype: Any = None,
    single_output: bool = False,
) -> tuple[Any, Any, Any]:
    """Each ``general_gemm(A[i], B[i], layout=layout)``, into ``out``.

    :param A: weights, or inputs for the layout NT.
    :param B: inputs, or gradients of outputs.
    :param out: a tensor for each product, or with ``single_output`` one for all of their rows.
    :param quantization_params: not used, as in the library.
    :param out_dtype: not used: ``out`` has a dtype.
    :param layout: TN, NN or NT.
    :param m_splits: rows of each product; needed with ``single_output``.
    :param gelu: apply GELU (tanh), and return what it was applied to.
    :param grad: with ``use_bias``, return the gradients of the biases.
    :param accumulate: add to ``out``.
    :param bias: one for each product, if ``use_bias``.
    :param use_split_accumulator: sum FP8 products in float32.
    :param D_dtype: not used: ``out`` has a dtype.
    :returns: (out, biases or their gradients, GELU's inputs).
    """
    parts: Sequence[torch.Tensor] = out
    if single_output:
        assert m_splits is not None, "single_output needs m_splits"
        parts = out[0].split(m_splits) if layout != "NT" else list(out[0])
    plain = not isinstance(A[0], QuantizedTensorStorage)
    added: Sequence[torch.Tensor | None] = [None] * len(A)
    if use_bias and bias is not None:
        added = bias
    done = plain and single_output and not accumulate and layout != "NT" and not gelu
    done = done and _in_one_launch(A, B, out[0], layout)
    gradients: list[torch.Tensor | None] = []
    inputs: list[torch.Tensor] = []
    for one, other, result, own in zip(A, B, parts, added, strict=True):
        if done:
            if own is not None and not grad:
                result.add_(own)
            gradients.append(_bias_gradient(other, own) if grad else None)
            continue
        if not other.size()[0] or not result.numel():
            if not accumulate:
                result.zero_()
            gradients.append(None if own is None else torch.zeros_like(own))
            inputs.append(result)
            continue
        _, gradient, _, _ = general_gemm(
            one,
            other,
            layout=layout,
            out=result,
            accumulate=accumulate,
            bias=own,
            grad=grad,
            use_split_accumulator=use_split_accumulator,
        )
        gradients.append(gradient)
        if gelu:
            inputs.append(result.clone())
            result.copy_(functional.gelu(result, approximate="tanh"))
    if single_output:
        out = out[0]  # type: ignore[assignment]
    empty = [torch.empty(0, device=parts[0].device)] * len(A)
    biases = gradients if grad and use_bias else list(added) if use_bias else empty
    return out, biases, inputs if gelu else empty


def _bias_gradient(gradient: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else gradient.sum(0)


def te_general_grouped_gemm(
    A: list[Any],
    transa: bool,
    B: list[Any],
    transb: bool,
    D: list[torch.Tensor],
    D_type: Any,
    m_splits: list[int],
    bias: list[torch.Tensor],
    bias_type: Any,
    single_output: bool,
    pre_gelu_out: list[torch.Tensor],
    grad: bool,
    workspace: Any,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Any:
    """The compiled extension's form of :func:`general_grouped_gemm`."""
    _, biases, _ = general_grouped_gemm(
        A,
        B,
        D,
        None,
        D[0].dtype,
        layout=("T" if transa else "N") + ("T" if transb else "N"),
        m_splits=m_splits,
        grad=grad,
        accumulate=accumulate,
        bias=bias,
        use_bias=bool(bias[0].numel()),
        use_split_accumulator=use_split_accumulator,
        single_output=single_output,
    )
    return biases
