"""One matrix product of plain or of quantized tensors; see :mod:`.gemm` for the layouts."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import SCALED_MATMUL, WEIGHT_GRADIENT, active

from ..custom_recipes.gemm import custom_gemm
from ..quantized_tensor import QuantizedTensorStorage, Quantizer
from ._block_rules import check_block_product

_LAYOUTS: Final = ("TN", "NN", "NT")


def validate_gemm_scale(scale: float | None, required: bool) -> float:
    """A product's factor, 1 by default; 0 where there is nothing to scale.

    :raises ValueError: a factor where there is nothing to scale.
    """
    if required:
        return 1.0 if scale is None else scale
    if scale not in (0.0, None):
        raise ValueError("scale must be zero")
    return 0.0


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def _widening(A: torch.Tensor, B: torch.Tensor, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A product summed and kept in a wider dtype than its operands'."""
    a, b = _rows(A), _rows(B)
    left, right = {"TN": (b.t(), a.t()), "NN": (b.t(), a), "NT": (b, a)}[layout]
    output = torch.zeros(left.shape[1], right.shape[1], dtype=dtype, device=a.device)
    active.kernel(WEIGHT_GRADIENT)(right, left, output)
    return output if layout == "NT" else output.view(*B.shape[:-1], -1)


def _product(
    A: torch.Tensor, B: torch.Tensor, layout: str, dtype: torch.dtype, bias: torch.Tensor | None
) -> torch.Tensor:
    """A new tensor in ``dtype``."""
    if A.dtype != B.dtype:
        both = torch.promote_types(A.dtype, B.dtype)
        A, B = A.to(both), B.to(both)
    if dtype.itemsize > A.dtype.itemsize:
        output = _widening(A, B, layout, dtype)
        return output if bias is None else output.add_(bias)
    if layout == "TN":
        output = functional.linear(B, A, None if bias is None else bias.to(A.dtype))
        return output.to(dtype)
    output = torch.matmul(B, _rows(A)) if layout == "NN" else torch.mm(_rows(B).t(), _rows(A))
    return (output if bias is None else output + bias).to(dtype)


def _added(out: torch.Tensor, product: torch.Tensor, beta: float) -> torch.Tensor:
    """``out = product + beta * out``; a factor of 1 costs no pass over it."""
    return (out if beta == 1.0 else out.mul_(beta)).add_(product)


def _into(
    A: torch.Tensor, B: torch.Tensor, layout: str, out: torch.Tensor, beta: float, alpha: float
) -> None:
    """``out = alpha * product + beta * out``."""
    if layout == "NT" and beta in (0.0, 1.0) and alpha == 1.0:
        if beta == 0.0 and out.dtype == A.dtype == B.dtype:
            torch.mm(_rows(B).t(), _rows(A), out=out)
            return
        if beta == 0.0:
            out.zero_()
        active.kernel(WEIGHT_GRADIENT)(A, B, out)
        return
    if beta == 0.0 and alpha == 1.0 and layout != "NT" and out.dtype == A.dtype == B.dtype:
        weight = _rows(A).t() if layout == "TN" else _rows(A)
        torch.mm(_rows(B), weight, out=out.view(-1, out.shape[-1]))
        return
    product = _product(A, B, layout, out.dtype, None)
    if alpha != 1.0:
        product = product * alpha
    if beta == 0.0:
        out.copy_(product)
    else:
        _added(out, product, beta)


def _scaled_product(
    A: Any,
    B: Any,
    layout: str,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    precise: bool,
) -> torch.Tensor:
    """The product of two quantized tensors, each read along what is summed over."""
    a, a_scale_inv = A._operand(by_columns=layout[0] == "N")
    b, b_scale_inv = B._operand(by_columns=layout[1] == "T")
    kernel = active.kernel(SCALED_MATMUL)
    output = kernel(b, a, b_scale_inv, a_scale_inv, dtype=dtype, bias=bias, precise=precise)
    if layout[1] == "T":
        return output
    return output.view(*B.size()[:-1], output.shape[-1])


def general_gemm(
    A: Any,
    B: Any,
    out_dtype: torch.dtype | None = None,
    quantization_params: Quantizer | None = None,
    gelu: bool = False,
    gelu_in: torch.Tensor | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    accumulate: bool = False,
    layout: str = "TN",
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_split_accumulator: bool = False,
    grad: bool = False,
    ub: Any = None,
    ub_type: Any = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """A product; autograd does not see it.

    :param A: a weight [n, k] (TN, NN) or a linear layer's input [..., k] (NT), plain or quantized.
    :param B: input [..., k] (TN) or gradient of the output [..., n] (NN, NT).
    :param out_dtype: of a new result; A's by default. In float32 half-precision products are
        summed and kept without rounding.
    :param quantization_params: quantizes the result.
    :param gelu: apply GELU (tanh) to the result; with ``grad``, its derivative at ``gelu_in``.
    :param gelu_in: what GELU was applied to.
    :param alpha: factor of the product.
    :param beta: factor of ``out``, 1 by default.
    :param accumulate: add to ``out``.
    :param layout: TN, NN or NT.
    :param out: where the result goes; may be a float32 ``main_grad``.
    :param bias: [n], added to the result; with ``grad``, asks for its gradient instead.
    :param use_split_accumulator: sum FP8 products in float32.
    :returns: (result, bias's gradient, GELU's input, None).
    :raises AssertionError: another layout.
    :raises ValueError: an ``out`` that is not contiguous, or ``beta`` without ``accumulate``.
    :raises NotImplementedError: ``ub``: user buffers are absent.
    :raises RuntimeError: a product of block-scaled tensors that cuBLAS lacks.
    """
    quantized = isinstance(A, QuantizedTensorStorage) or isinstance(B, QuantizedTensorStorage)
    # The compiled extension's own form reads quantized tensors in every way.
    allowed = layout in _LAYOUTS or (layout == "TT" and quantized)
    assert allowed, f"GEMM layout {layout} not supported."
    if ub is not None or ub_type is not None:
        raise NotImplementedError("accel_bridge's shim has no user buffers (ub)")
    alpha = validate_gemm_scale(alpha, True)
    beta = validate_gemm_scale(beta, accumulate)
    if out is not None and not out.is_contiguous():
        raise ValueError("Output tensor is not contiguous.")
    if torch.is_grad_enabled():
        with torch.no_grad():
            return general_gemm(
                *(A, B, out_dtype, quantization_params, gelu, gelu_in, alpha),
                *(beta if accumulate else None, accumulate, layout, out, bias),
                *(use_split_accumulator, grad),
            )
    if quantized and (getattr(A, "custom", False) or getattr(B, "custom", False)):
        done: tuple[torch.Tensor, None, None, None] = custom_gemm(
            *(A, B, None, out_dtype, quantization_params, gelu, gelu_in, accumulate),
            *(layout, out, bias, use_split_accumulator, grad),
        )
        return done
    added = None if grad else bias
    if quantized:
        dtype = out.dtype if out is not None else out_dtype or A.dtype
        check_block_product(
            *(A, B, layout, dtype),
            precise=use_split_accumulator,
            bias=bias is not None,
            gelu=gelu,
            grad=grad,
        )
        result = _scaled_product(A, B, layout, dtype, added, use_split_accumulator)
        if alpha != 1.0:
            result = result * alpha
        if out is not None:
            result = _added(out, result, beta) if accumulate else out.copy_(result)
    elif out is None:
        result = _product(A, B, layout, out_dtype or A.dtype, added)
        if alpha != 1.0:
            result = result * alpha
    else:
        _into(A, B, layout, out, beta, alpha)
        result = out if added is None else out.add_(added)
    bias_grad = None
    if gelu:
        if grad:
            assert gelu_in is not None, "the derivative of GELU needs its input"
            point = gelu_in.view(result.shape).to(result.dtype)
            result = torch.ops.aten.gelu_backward(result, point, approximate="tanh")
        else:
            gelu_in = result
            result = functional.gelu(result, approximate="tanh")
    if grad and bias is not None:
        source = B.dequantize(dtype=result.dtype) if isinstance(B, QuantizedTensorStorage) else B
        bias_grad = _rows(source).sum(0, dtype=result.dtype)
    if quantization_params is not None:
        result = quantization_params(result)
    return result, bias_grad, gelu_in if gelu else None, extra_output
