"""GEMMs: of plain tensors, of quantized ones (contract ``scaled_matmul``), of many weights.

Operands are named as a column-major library names them: the result is ``op(B) @ op(A)`` in rows,
so that a linear layer's output is ``B @ A^T`` (TN), its input's gradient ``B @ A`` (NN) and its
weight's gradient ``B^T @ A`` (NT).

Legend: ... any leading dimensions (tokens), k input size, n output size; e experts, t rows of all
of them, m output size.
Source: gemm.cpp of Transformer Engine 2.8 to 2.20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT, WEIGHT_GRADIENT, active
from accel_bridge.kernels.active import kernel
from accel_bridge.kernels.float8 import (
    GROUPED_SCALED_WEIGHT_GRADIENT,
    SCALED_MATMUL,
    float8_dequantize,
)
from accel_bridge.kernels.weight_gradient import is_much
from accel_bridge.libraries.transformer_engine_torch import refuse
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    Operand,
    flat,
    in_one_storage,
    is_capturing,
    is_quantized,
    joined,
    operand,
    stacked,
)
from accel_bridge.libraries.transformer_engine_torch.enums import TORCH_DTYPE

#: What the size that is summed over, and the others, must be multiples of with block scaling.
_INNER: Final = 16
_OUTER: Final = 8


def scaled_gemm(
    a: Any,
    transposed_a: bool,
    b: Any,
    transposed_b: bool,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """``op(b) @ op(a)`` of quantized tensors, in the layouts of ``generic_gemm``.

    :param a: [m, k] if ``transposed_a``, else [k, m].
    :param b: [.., k] if not ``transposed_b``, else [k.., n].
    :param dtype: of the result.
    :param bias: [m], added before the result is rounded.
    :param precise: sum in float32 (``use_split_accumulator``).
    :returns: [n, m].
    :raises RuntimeError: an operand lacks the data that the layout reads, or only one is quantized.
    """
    if not (is_quantized(a) and is_quantized(b)):
        kinds = f"{type(a).__name__} and {type(b).__name__}"
        raise RuntimeError(f"a GEMM takes two quantized operands or none, not {kinds}")
    left = operand(b, columnwise=transposed_b)
    right = operand(a, columnwise=not transposed_a)
    return gemm(left, right, dtype, bias=bias, precise=precise)


def gemm(
    left: Operand,
    right: Operand,
    dtype: torch.dtype,
    *,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """``left @ right^T + bias``: [n, k] by [m, k] -> [n, m] in ``dtype``."""
    if left.scale_inv.dtype == torch.float8_e8m0fnu:
        # No backend multiplies MX formats: emulated in float32.
        wide = torch.nn.functional.linear(float8_dequantize(*left), float8_dequantize(*right))
        return (wide if bias is None else wide + bias).to(dtype)
    return kernel(SCALED_MATMUL)(
        left.numbers,
        right.numbers,
        left.scale_inv,
        right.scale_inv,
        dtype=dtype,
        bias=bias,
        precise=precise,
    )


def check_blocks(
    a: Any,
    transposed_a: bool,
    b: Any,
    transposed_b: bool,
    dtype: torch.dtype,
    *,
    precise: bool,
    bias: bool,
    gelu: bool,
    grad: bool,
) -> None:
    """Refuse what cuBLAS has no kernel for, so that what works here works with it, too.

    Nothing, if the operands are not scaled by blocks. Source: common/gemm/cublaslt_gemm.cu.

    :param dtype: of the result.
    :param bias: there is a bias, or its gradient is asked for.
    :raises RuntimeError: cuBLAS has no such GEMM.
    """
    squares = [getattr(one, "_is_2D_scaled", None) for one in (a, b)]
    if None in squares:
        return
    if all(squares):
        raise RuntimeError("Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported")
    m, k = _sizes(a, transposed_a)
    n, _ = _sizes(b, not transposed_b)
    place = None
    if k % _INNER:
        place = f"Leading dimension requirement ({_INNER})"
    elif m % _OUTER or (n % _OUTER and not squares[1]):
        place = f"Outer dimension requirement ({_OUTER})"
    if place is not None:
        sizes = f"[{n}, {k}] by [{k}, {m}]"
        raise RuntimeError(f"{place} for block scaling GEMM. Caller must pad. Sizes: {sizes}.")
    why = None
    if TORCH_DTYPE[a._fp8_dtype] == TORCH_DTYPE[b._fp8_dtype] == torch.float8_e5m2:
        why = "both operands are E5M2"
    elif not precise:
        why = "the sums are not kept in float32 (use_split_accumulator)"
    if why is not None:
        raise RuntimeError(f"CUBLAS_STATUS_NOT_SUPPORTED: block scaling GEMM, but {why}")
    if gelu and grad and not bias:
        if dtype != torch.bfloat16:
            raise RuntimeError(
                "cuBLAS: an unsupported value or parameter was passed to the function: the "
                f"derivative of GELU in {dtype} behind a GEMM of block-scaled tensors"
            )
    elif gelu or (grad and bias):
        raise RuntimeError(
            "Epilogue requested outside of the available and tested cuBLAS functionality for "
            "float8 block scaled GEMM"
        )


def _sizes(x: Any, summed_last: bool) -> tuple[int, int]:
    """(rows, the size that is summed over)."""
    *rows, last = x.size()
    count = torch.Size(rows).numel()
    return (count, last) if summed_last else (last, count)


def has_quantizer(tensor: Any) -> bool:
    """Whether it is one of Transformer Engine's quantized tensors or their bare storage."""
    return hasattr(tensor, "_quantizer")


def _widening(
    a: torch.Tensor, trans_a: bool, b: torch.Tensor, trans_b: bool, dtype: torch.dtype
) -> torch.Tensor:
    """A GEMM summed and kept in a wider dtype than its operands'."""
    left, right = (b if trans_b else b.t()), (a.t() if trans_a else a)
    output = torch.empty(left.shape[1], right.shape[1], dtype=dtype, device=a.device)
    active.kernel(WEIGHT_GRADIENT)(right, left, output, accumulate=False)
    return output


def plain_gemm(
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


def _gemm(
    A: Any,
    trans_a: bool,
    B: Any,
    trans_b: bool,
    dtype: torch.dtype,
    bias: torch.Tensor | None,
    precise: bool,
) -> torch.Tensor:
    if has_quantizer(A) or has_quantizer(B):
        return scaled_gemm(A, trans_a, B, trans_b, dtype, bias=bias, precise=precise)
    return plain_gemm(A, trans_a, B, trans_b, dtype, bias)


def _accumulated(
    A: torch.Tensor, B: torch.Tensor, out: torch.Tensor, accumulate: bool
) -> torch.Tensor:
    """A weight's gradient, in or added to ``out``."""
    if not accumulate and out.dtype == A.dtype == B.dtype:
        return torch.mm(flat(B).t(), flat(A), out=out)
    active.kernel(WEIGHT_GRADIENT)(flat(A), flat(B), out, accumulate=accumulate)
    return out


def _scale_inv_of_rows(scale_inv: torch.Tensor, rows: int) -> torch.Tensor | None:
    """[1], or [k / 128, rows] for blocks of 1 x 128; None for other blocks."""
    if scale_inv.dtype != torch.float32:
        return None
    if scale_inv.numel() == 1:
        return scale_inv.view(1)
    return scale_inv.t() if scale_inv.shape[0] == rows else None


def gemm_into(left: Operand, right: Operand, sums: torch.Tensor, accumulate: bool) -> bool:
    """``sums += left @ right^T``, or ``=``, by a GEMM that adds, where the device has one.

    :param left: [m, t]; :param right: [k, t].
    :param sums: [m, k], a weight's gradient; float32 as a rule.
    :returns: False, with nothing done, where it has none.
    """
    found = kernel(GROUPED_SCALED_WEIGHT_GRADIENT)
    (m, t), k = left.numbers.shape, right.numbers.shape[0]
    right_scale_inv = _scale_inv_of_rows(right.scale_inv, k)
    left_scale_inv = _scale_inv_of_rows(left.scale_inv, m)
    if found.is_reference or right_scale_inv is None or left_scale_inv is None:
        return False
    if right_scale_inv.dim() != left_scale_inv.dim() or not sums.is_contiguous():
        return False
    numbers = right.numbers.reshape(-1), left.numbers.reshape(-1)
    given = (*numbers, right_scale_inv, left_scale_inv, [t], sums.view(-1), [0])
    if found.supports(*given, sizes=(k, m), accumulate=accumulate) is not None:
        return False
    found.function(*given, sizes=(k, m), accumulate=accumulate)
    return True


def _gradient_into(A: Any, B: Any, out: torch.Tensor, accumulate: bool) -> bool:
    """As :func:`gemm_into` for quantized inputs and gradients."""
    if kernel(GROUPED_SCALED_WEIGHT_GRADIENT).is_reference:
        return False  # before an operand is transposed for it
    left, right = operand(B, columnwise=True), operand(A, columnwise=True)
    return gemm_into(left, right, out.view(len(left.numbers), -1), accumulate)


def bias_gradient(B: Any, dtype: torch.dtype) -> torch.Tensor:
    """The sum of the rows of a gradient, plain or quantized: [n] in ``dtype``."""
    source = B.dequantize(dtype=dtype) if has_quantizer(B) else B
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
    :param use_split_accumulator: sum FP8 GEMMs in float32.
    :returns: [result, bias's gradient, GELU's input, ``extra_output``].
    :raises NotServedError: ``comm_overlap``: there are no user buffers.
    """
    if comm_overlap is not None:
        refuse("generic_gemm (with overlapped communication)")
    plain = None if D is None or has_quantizer(D) else D
    if plain is not None:
        dtype = plain.dtype
    elif output_dtype is not None:
        dtype = TORCH_DTYPE[output_dtype]
    else:
        dtype = A.dtype
    quantized = has_quantizer(A) or has_quantizer(B)
    as_is = not gelu and alpha == 1.0 and beta in (None, 1.0) and not quantized
    if plain is not None and transB and not transA and as_is and (grad or bias is None):
        bias_grad = None if bias is None else bias_gradient(B, dtype)
        return [_accumulated(A, B, plain, accumulate), bias_grad, None, extra_output]
    if quantized:
        check_blocks(
            *(A, transA, B, transB, dtype),
            precise=use_split_accumulator,
            bias=bias is not None and bias.numel() > 0,
            gelu=gelu,
            grad=grad,
        )
    as_is = quantized and not gelu and alpha == 1.0 and beta in (None, float(accumulate))
    gradient = transB and not transA and (grad or bias is None)
    if plain is not None and as_is and gradient and _gradient_into(A, B, plain, accumulate):
        bias_grad = None if bias is None else bias_gradient(B, dtype)
        return [plain, bias_grad, None, extra_output]
    scaled = alpha != 1.0
    added = None if grad or bias is None or not bias.numel() or scaled else bias
    # What is still scaled is not rounded before.
    inner = torch.float32 if scaled else dtype
    out = _gemm(A, transA, B, transB, inner, added, use_split_accumulator)
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
        from accel_bridge.libraries.transformer_engine_torch.quantization import quantize

        out = quantize(out, D._quantizer if quantizer is None else quantizer, D)
    return [out, bias_grad, before, extra_output]


def get_num_cublas_streams() -> int:
    """One: GEMMs are issued one after another."""
    return 1


def gemms_at_once(
    weights: Sequence[torch.Tensor],
    transposed: bool,
    parts: Sequence[torch.Tensor],
    out: torch.Tensor,
) -> bool:
    """Every ``parts[i] @ weights[i]^T`` into ``out`` in one launch, if that is possible."""
    found = kernel(GROUPED_MATMUL)
    counts = [part.shape[0] for part in parts]
    if found.is_reference or is_much(sum(counts), weights[0].numel(), len(counts)):
        return False
    if not weights[0].dtype == parts[0].dtype == out.dtype:
        return False
    weight = stacked(weights)
    rows = None if weight is None else joined(parts)
    if weight is None or rows is None:
        return False
    given = (rows, weight.transpose(1, 2) if transposed else weight, torch.tensor(counts))
    if found.supports(*given) is not None:
        return False
    out.view(len(rows), -1).copy_(found.function(*given))
    return True


def gradients_at_once(
    inputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    sums: Sequence[torch.Tensor],
    accumulate: bool,
) -> bool:
    """Every ``gradients[i]^T @ inputs[i]`` into ``sums[i]`` in one launch, if that is possible."""
    found = kernel(GROUPED_WEIGHT_GRADIENT)
    if found.is_reference or is_much(sum(map(len, inputs)), sums[0].numel(), len(sums)):
        return False
    if is_capturing(inputs[0]):
        return False  # the numbers of rows would be those of the capture
    whole, x, grad = in_one_storage(sums), joined(inputs), joined(gradients)
    if whole is None or x is None or grad is None:
        return False
    given = (x, grad, [len(part) for part in inputs], *whole)
    if found.supports(*given) is not None:
        return False
    found(*given, accumulate=accumulate)
    return True


def _outputs(
    B: Sequence[Any],
    transb: bool,
    A: Sequence[Any],
    transa: bool,
    whole: torch.Tensor,
) -> list[torch.Tensor]:
    """The results' places, one after another in ``whole``."""
    flat, made, first = whole.view(-1), [], 0
    for a, b in zip(A, B, strict=True):
        *rows, last = b.size()
        n = last if transb else torch.Size(rows).numel()
        m = torch.Size(a.size()[:-1]).numel() if transa else a.size()[-1]
        made.append(flat[first : first + n * m].view(n, m))
        first += n * m
    return made


@torch.no_grad()
def te_general_grouped_gemm(
    A: Sequence[Any],
    transa: bool,
    B: Sequence[Any],
    transb: bool,
    D: Sequence[torch.Tensor] | None,
    D_type: int,
    m_splits: Sequence[int],
    bias: Sequence[torch.Tensor],
    bias_type: int,
    single_output: bool,
    pre_gelu_out: Sequence[torch.Tensor],
    grad: bool,
    workspace: Any,
    workspaceSize: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Sequence[torch.Tensor]:
    """``D[i] = op(B[i]) @ op(A[i])`` in the layouts of ``generic_gemm``.

    :param A: e weights, or inputs for a weight's gradient, plain or quantized.
    :param B: e blocks of rows: inputs or gradients, plain or quantized; some may be empty.
    :param D: a tensor for each, or with ``single_output`` one for all of them.
    :param bias: [n] each, added, or empty; with ``grad``, takes the gradients of the biases.
    :param pre_gelu_out: takes what GELU is applied to; empty: no GELU.
    :param accumulate: add to ``D``.
    :returns: ``bias``.
    """
    if single_output:
        assert D is not None, "not implemented, D should be allocated for single output case."
        outs = _outputs(B, transb, A, transa, D[0])
    else:
        outs = list(D) if D is not None else []
    # Blocks' sums are kept in float32, whatever is asked for.
    use_split_accumulator |= hasattr(A[0], "_is_2D_scaled")
    done = False
    plain = not any(is_quantized(one) for one in (*A, *B))
    if outs and plain and not pre_gelu_out[0].numel():
        if transb:
            done = not transa and gradients_at_once(A, B, outs, accumulate)
        elif single_output and D is not None and not accumulate:
            done = gemms_at_once(A, transa, B, D[0])
    for index, (a, b, one, inner) in enumerate(zip(A, B, bias, pre_gelu_out, strict=True)):
        out = outs[index] if outs else None
        has_bias = bool(one.numel())
        if not a.size().numel() or not b.size().numel():
            zeros = [one] if has_bias and grad else []
            if out is not None and out.numel() and not (accumulate or done):
                zeros.append(out)
            for place in zeros:
                place.zero_()
            continue
        if done:
            if has_bias and grad:
                one.copy_(bias_gradient(b, one.dtype))
            elif has_bias:
                outs[index].add_(one)
            continue
        made, bias_grad, before, _ = generic_gemm(
            a,
            transa,
            b,
            transb,
            None if inner.numel() else out,
            None,
            D_type if out is None else None,
            one if has_bias else None,
            bias_type,
            bool(inner.numel()),
            None,
            grad,
            None,
            0,
            accumulate,
            use_split_accumulator,
        )
        if bias_grad is not None:
            one.copy_(bias_grad)
        if inner.numel() and out is not None:
            inner.copy_(before)
            out.copy_(made)
    return bias


def splits_to_offsets(first_dims: torch.Tensor, logical_last_dim: int) -> torch.Tensor:
    """Where groups of rows begin, in elements: [e + 1], int64, the last is the end.

    :param first_dims: [e], int64: numbers of rows.
    :param logical_last_dim: elements of a row.
    """
    return functional.pad(first_dims.to(torch.int64).cumsum(0) * logical_last_dim, (1, 0))


def splits_to_offsets_multi(
    split_sizes: torch.Tensor | Sequence[int],
    device: torch.device | str,
    *,
    strides: Sequence[int],
    include_leading_zero: Sequence[bool],
    dtypes: Sequence[torch.dtype],
    bulk_allocate: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Numbers of rows on the device, and several :func:`splits_to_offsets` of them.

    :param split_sizes: [e], on any device.
    :param strides: elements of a row, for each.
    :param include_leading_zero: begin with 0, for each.
    :param dtypes: int32 or int64, for each.
    :param bulk_allocate: no meaning here.
    """
    sizes = torch.as_tensor(split_sizes).to(device=device, dtype=torch.int64)
    made = []
    for stride, zero, dtype in zip(strides, include_leading_zero, dtypes, strict=True):
        offsets = splits_to_offsets(sizes, stride)
        made.append((offsets if zero else offsets[1:]).to(dtype))
    return sizes, made
