"""GEMMs of several weights, each with rows of its own. Source: csrc/extensions/gemm.cpp.

Legend: e experts, t rows of all of them, k input size, n output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.kernels import GROUPED_MATMUL, GROUPED_WEIGHT_GRADIENT
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries.transformer_engine_torch._tensors import (
    in_one_storage,
    is_quantized,
    joined,
    stacked,
)
from accel_bridge.libraries.transformer_engine_torch.gemm import bias_gradient, generic_gemm

#: Floating-point operations of an expert's GEMM from which on separate GEMMs are as fast as a
#: grouped one: a launch costs the host about as long as a device takes for them.
MUCH: Final = 5e10


def is_much(rows: int, weight: torch.Tensor, experts: int) -> bool:
    """Whether separate GEMMs of ``rows`` rows of all experts are as fast as a grouped one."""
    return 2 * rows * weight.numel() > MUCH * experts


def products_at_once(
    weights: Sequence[torch.Tensor],
    transposed: bool,
    parts: Sequence[torch.Tensor],
    out: torch.Tensor,
) -> bool:
    """Every ``parts[i] @ weights[i]^T`` into ``out`` in one launch, if that is possible."""
    found = kernel(GROUPED_MATMUL)
    counts = [part.shape[0] for part in parts]
    if found.is_reference or is_much(sum(counts), weights[0], len(counts)):
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
    if found.is_reference or is_much(sum(map(len, inputs)), sums[0], len(sums)):
        return False
    if inputs[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # the numbers of rows would be those of the capture
    whole, x, grad = in_one_storage(sums), joined(inputs), joined(gradients)
    if whole is None or x is None or grad is None:
        return False
    given = (x, grad, [len(part) for part in inputs], *whole)
    if found.supports(*given) is not None:
        return False
    if not accumulate:
        torch._foreach_zero_(list(sums))
    found(*given)
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
            done = products_at_once(A, transa, B, D[0])
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
