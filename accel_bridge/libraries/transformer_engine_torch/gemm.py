"""Matrix products of plain and of quantized tensors.

Operands are named as a column-major library names them: the result is ``op(B) @ op(A)`` in rows,
so that a linear layer's output is ``B @ A^T`` (TN), its input's gradient ``B @ A`` (NN) and its
weight's gradient ``B^T @ A`` (NT).

Legend: ... any leading dimensions (tokens), k input size, n output size.
Source: gemm.cpp of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import WEIGHT_GRADIENT, active
from accel_bridge.libraries.transformer_engine_torch import refuse
from accel_bridge.libraries.transformer_engine_torch._tensors import flat
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE


def is_quantized(tensor: Any) -> bool:
    """Whether it is one of Transformer Engine's quantized tensors or their bare storage."""
    return hasattr(tensor, "_quantizer")


def _widening(
    a: torch.Tensor, trans_a: bool, b: torch.Tensor, trans_b: bool, dtype: torch.dtype
) -> torch.Tensor:
    """A product summed and kept in a wider dtype than its operands'."""
    left, right = (b if trans_b else b.t()), (a.t() if trans_a else a)
    output = torch.zeros(left.shape[1], right.shape[1], dtype=dtype, device=a.device)
    active.kernel(WEIGHT_GRADIENT)(right, left, output)
    return output


def plain_product(
    A: torch.Tensor,
    trans_a: bool,
    B: torch.Tensor,
    trans_b: bool,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """``op(B) @ op(A) + bias`` of plain tensors as a matrix, in ``dtype``.

    :param A: [n, k] or [..., k]; leading dimensions are rows.
    :param B: likewise.
    :param bias: [n], added in the operands' dtype.
    """
    a, b = flat(A), flat(B)
    if a.dtype != b.dtype:
        both = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(both), b.to(both)
    if dtype.itemsize > a.dtype.itemsize:
        output = _widening(a, trans_a, b, trans_b, dtype)
        return output if bias is None else output.add_(bias)
    if trans_a and not trans_b:
        added = None if bias is None else bias.to(a.dtype)
        return functional.linear(b, a, added).to(dtype)
    output = torch.mm(b.t() if trans_b else b, a.t() if trans_a else a)
    return (output if bias is None else output + bias.to(output.dtype)).to(dtype)


def _product(
    A: Any,
    trans_a: bool,
    B: Any,
    trans_b: bool,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    precise: bool,
) -> torch.Tensor:
    if is_quantized(A) or is_quantized(B):
        from accel_bridge.libraries.transformer_engine_torch.fp8_gemm import scaled_gemm

        return scaled_gemm(A, trans_a, B, trans_b, dtype, bias=bias, precise=precise)
    return plain_product(A, trans_a, B, trans_b, dtype, bias)


def _accumulated(
    A: torch.Tensor, B: torch.Tensor, out: torch.Tensor, accumulate: bool
) -> torch.Tensor:
    """A weight's gradient, in or added to ``out``."""
    if not accumulate and out.dtype == A.dtype == B.dtype:
        return torch.mm(flat(B).t(), flat(A), out=out)
    active.kernel(WEIGHT_GRADIENT)(flat(A), flat(B), out if accumulate else out.zero_())
    return out


def bias_gradient(B: Any, dtype: torch.dtype) -> torch.Tensor:
    """The sum of the rows of a gradient, plain or quantized: [n] in ``dtype``."""
    source = B.dequantize(dtype=dtype) if is_quantized(B) else B
    return flat(source).sum(0, dtype=torch.float32).to(dtype)


@torch.no_grad()
def generic_gemm(
    A: Any,
    transA: bool,
    B: Any,
    transB: bool,
    D: Any,
    quantizer: Any,
    output_dtype: int | None,
    bias: torch.Tensor | None,
    bias_type: int | None,
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
    """``D = alpha op(B) @ op(A) + beta D``, with bias and GELU or with their gradients.

    :param A: a weight [n, k] or an input [..., k], plain or quantized.
    :param B: an input [..., k] or a gradient [..., n], plain or quantized.
    :param D: where the result goes, plain or quantized, or None.
    :param quantizer: quantizes the result.
    :param output_dtype: of a new result.
    :param bias: [n], added; with ``grad``, asks for its gradient from ``B``.
    :param gelu: apply GELU (tanh); with ``grad``, its derivative at ``gelu_in``.
    :param accumulate: add to ``D``.
    :param use_split_accumulator: sum FP8 products in float32.
    :returns: [result, bias's gradient, GELU's input, ``extra_output``].
    :raises NotServedError: ``comm_overlap``: there are no user buffers.
    """
    if comm_overlap is not None:
        refuse("generic_gemm (with overlapped communication)")
    plain = None if D is None or is_quantized(D) else D
    if plain is not None:
        dtype = plain.dtype
    elif output_dtype is not None:
        dtype = TORCH_DTYPE[output_dtype]
    else:
        dtype = A.dtype
    quantized = is_quantized(A) or is_quantized(B)
    as_is = not gelu and alpha == 1.0 and beta in (None, 1.0) and not quantized
    if plain is not None and transB and not transA and as_is and (grad or bias is None):
        bias_grad = None if bias is None else bias_gradient(B, dtype)
        return [_accumulated(A, B, plain, accumulate), bias_grad, None, extra_output]
    if quantized:
        from accel_bridge.libraries.transformer_engine_torch.fp8_gemm import check_blocks

        check_blocks(
            *(A, transA, B, transB, dtype),
            precise=use_split_accumulator,
            bias=bias is not None and bias.numel() > 0,
            gelu=gelu,
            grad=grad,
        )
    scaled = alpha != 1.0
    added = None if grad or bias is None or not bias.numel() or scaled else bias
    # What is still scaled is not rounded before.
    inner = torch.float32 if scaled else dtype
    out = _product(A, transA, B, transB, inner, added, use_split_accumulator)
    if scaled:
        out = out * alpha
        out = out if grad or bias is None else out + bias
    bias_grad = None
    if grad and bias is not None:
        bias_grad = bias_gradient(B, dtype)
    if not transB:
        out = out.view(*B.size()[:-1], out.shape[-1])
    before = None
    if gelu and grad:
        assert gelu_in is not None, "the derivative of GELU needs its input"
        point = gelu_in.view(out.shape).to(out.dtype)
        out = torch.ops.aten.gelu_backward(out, point, approximate="tanh")
    elif gelu:
        before = out
        out = functional.gelu(out, approximate="tanh")
    if plain is None:
        out = out.to(dtype)
    if plain is not None:
        out = out.view(plain.shape)
        if accumulate:
            out = (plain if beta in (None, 1.0) else plain.mul_(beta)).add_(out)
        else:
            out = plain.copy_(out)
    elif quantizer is not None or D is not None:
        from accel_bridge.libraries.transformer_engine_torch.quantize import quantize

        out = quantize(out, D._quantizer if quantizer is None else quantizer, D)
    return [out, bias_grad, before, extra_output]


def get_num_cublas_streams() -> int:
    """One: products are issued one after another."""
    return 1
