"""Contracts of FP8 for several experts at once: quantizing, products, weight gradients.

Rows are sorted by expert. Every expert has factors of its own: one for all of its numbers, or one
for each block of them.

Legend: t rows of all experts, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accel_bridge.kernels._contract import Contract
from accel_bridge.kernels.float8 import (
    blocks_of,
    float8_block_quantize_reference,
    float8_current_quantize_reference,
    float8_quantize_reference,
    scaled_matmul_reference,
)


def _check_rows(splits: Sequence[int], rows: int) -> None:
    if sum(splits) != rows:
        raise ValueError(f"counts {list(splits)} for {rows} rows")


def parts_of_transposed(
    transposed: torch.Tensor, splits: Sequence[int], size: int
) -> list[torch.Tensor]:
    """The transposes [size, rows of expert i] that lie one after another in ``transposed``.

    :param transposed: [t * size], or more.
    """
    parts, first = [], 0
    for rows in splits:
        parts.append(transposed[first * size : (first + rows) * size].view(size, rows))
        first += rows
    return parts


@torch.no_grad()
def grouped_float8_quantize_reference(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | None = None,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    transposed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``float8_quantize`` of each expert's rows; ``float8_current_quantize`` without a scale.

    :param input: [t, k], float16, bfloat16 or float32, rows sorted by expert.
    :param splits: e numbers of rows, on the host; zeros are allowed.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param scale: [e], float32, any stride: what each expert's rows are multiplied with. None: the
        scale that the largest magnitude of its rows gives.
    :param amax: [e], float32, any stride; becomes the largest magnitude of each expert's rows, in
        place. Experts without rows keep theirs.
    :param power_of_2: as ``float8_scale``; without a scale only.
    :param epsilon: likewise.
    :param transposed: [t * k], in ``dtype``; becomes the transposes [k, rows], expert after expert.
    :returns: numbers [t, k], contiguous; the reciprocals of the scales [e].
    :raises ValueError: counts that do not sum to t.
    """
    _check_rows(splits, input.shape[0])
    k, device = input.shape[1], input.device
    numbers = torch.empty(input.shape, dtype=dtype, device=device)
    ones = torch.ones(len(splits), dtype=torch.float32, device=device)
    scale_inv = ones if scale is None else scale.reciprocal()
    targets = (
        [None] * len(splits) if transposed is None else parts_of_transposed(transposed, splits, k)
    )
    groups = zip(input.split(list(splits)), numbers.split(list(splits)), targets, strict=True)
    for index, (rows, result, target) in enumerate(groups):
        if not len(rows):
            continue
        found = torch.zeros(1, dtype=torch.float32, device=device)
        if scale is None:
            made, factor = float8_current_quantize_reference(
                rows,
                dtype=dtype,
                amax=found,
                scale=torch.empty_like(found),
                power_of_2=power_of_2,
                epsilon=epsilon,
                transposed=target,
            )
            scale_inv[index : index + 1] = factor
        else:
            made = float8_quantize_reference(
                rows, scale[index], dtype=dtype, amax=found, transposed=target
            )
        result.view(torch.uint8).copy_(made.view(torch.uint8))
        if amax is not None:
            amax[index : index + 1] = found
    return numbers, scale_inv


def transposed_blocks(splits: Sequence[int]) -> list[int]:
    """How many blocks of 128 rows each expert has."""
    return [blocks_of(rows) for rows in splits]


@torch.no_grad()
def grouped_float8_block_turn_reference(
    input: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``float8_block_quantize`` of the transpose of each expert's rows, in blocks of 1 x 128.

    :param input: [t, k], float16, bfloat16 or float32, rows sorted by expert.
    :param splits: e numbers of rows, on the host; zeros are allowed.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param power_of_2: scale_inv are powers of two.
    :param epsilon: least value taken for a block's largest magnitude.
    :returns: numbers [t * k]: the transposes [k, rows], expert after expert; scale_inv
        [sum of rows / 128 of each expert, k], rounded up: the block's row, then k.
    :raises ValueError: counts that do not sum to t.
    """
    _check_rows(splits, input.shape[0])
    k = input.shape[1]
    options = {"dtype": dtype, "power_of_2": power_of_2, "epsilon": epsilon}
    numbers = [input.new_empty(0, dtype=torch.uint8)]
    scale_inv = [torch.empty(0, k, dtype=torch.float32, device=input.device)]
    for rows in input.split(list(splits)):
        if len(rows):
            made, factor = float8_block_quantize_reference(rows.t(), rows=1, **options)  # type: ignore[arg-type]
            numbers.append(made.view(torch.uint8).reshape(-1))
            scale_inv.append(factor.t())
    return torch.cat(numbers).view(dtype), torch.cat(scale_inv)


@torch.no_grad()
def grouped_scaled_matmul_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
    splits: Sequence[int],
    *,
    dtype: torch.dtype,
    precise: bool = True,
) -> torch.Tensor:
    """``scaled_matmul`` of each expert's rows with its weight.

    :param a: [t, k], FP8, rows sorted by expert.
    :param b: [e, m, k], FP8, contiguous; not both operands are E5M2.
    :param a_scale_inv: float32: [e], or [t, k / 128] for blocks of 1 x 128.
    :param b_scale_inv: float32: [e], or [e, m / 128, k / 128] for blocks of 128 x 128; both have
        blocks, or neither.
    :param splits: e numbers of rows, on the host; zeros are allowed.
    :param dtype: of the result: float16, bfloat16 or float32; float64 with float64 scale_inv.
    :param precise: sum in float32; otherwise a device may sum in fewer bits.
    :returns: [t, m] in ``dtype``.
    :raises ValueError: counts that do not sum to t.
    """
    _check_rows(splits, a.shape[0])
    if a_scale_inv.dtype == torch.float64:
        dtype = torch.float64
    output = torch.empty(a.shape[0], b.shape[1], dtype=dtype, device=a.device)
    by_block = a_scale_inv.dim() > 1
    first = 0
    for index, rows in enumerate(splits):
        part = slice(first, first + rows)
        first += rows
        if rows:
            output[part] = scaled_matmul_reference(
                a[part],
                b[index],
                a_scale_inv[part] if by_block else a_scale_inv[index : index + 1],
                b_scale_inv[index] if by_block else b_scale_inv[index : index + 1],
                dtype=dtype,
                precise=precise,
            )
    return output


@torch.no_grad()
def grouped_scaled_weight_gradient_reference(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    input_scale_inv: torch.Tensor,
    grad_scale_inv: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
    *,
    sizes: tuple[int, int],
) -> None:
    """``main_grad_i += grad_output_i^T @ input_i`` from FP8 transposes, in place.

    Products and sums have main_grad's precision.

    :param input: [t * k], FP8: the transposes [k, rows] of each expert's rows.
    :param grad_output: [t * m], FP8, likewise; not both operands are E5M2.
    :param input_scale_inv: float32: [e], or [blocks of 128 rows, k]; see
        :func:`grouped_float8_block_turn_reference`.
    :param grad_scale_inv: float32: [e], or [blocks of 128 rows, m]; both have blocks, or neither.
    :param splits: e numbers of rows, on the host; zeros are allowed.
    :param main_grad: [n], contiguous; float32 as a rule. Experts' sums [m, k] lie in it in any
        order, as in a buffer of gradients.
    :param places: e numbers: where in ``main_grad`` each expert's sums begin.
    :param sizes: (k, m).
    """
    k, m = sizes
    by_block = input_scale_inv.dim() > 1
    xs, gradients = (
        parts_of_transposed(input, splits, k),
        parts_of_transposed(grad_output, splits, m),
    )
    first = 0
    for index, (x, gradient, place) in enumerate(zip(xs, gradients, places, strict=True)):
        blocks = slice(first, first + blocks_of(splits[index]))
        first = blocks.stop
        if not splits[index]:
            continue
        one = slice(index, index + 1)
        product = scaled_matmul_reference(
            gradient,
            x,
            (grad_scale_inv[blocks].t() if by_block else grad_scale_inv[one]).to(main_grad.dtype),
            (input_scale_inv[blocks].t() if by_block else input_scale_inv[one]).to(main_grad.dtype),
            dtype=main_grad.dtype,
        )
        main_grad[place : place + m * k].view(m, k).add_(product)


GROUPED_FLOAT8_QUANTIZE = Contract(
    name="grouped_float8_quantize",
    reference=grouped_float8_quantize_reference,
    formula="q[group i] = round(x[group i] * s_i)",
    source="semantics of Transformer Engine's split_quantize",
    falls_back=False,
)
GROUPED_FLOAT8_BLOCK_TRANSPOSE = Contract(
    name="grouped_float8_block_transpose",
    reference=grouped_float8_block_turn_reference,
    formula="q = round(x[group i]^T / s) with s = max(abs(x)) / max(FP8) of each block",
    source="semantics of Transformer Engine's split_quantize with block scaling",
    falls_back=False,
)
GROUPED_SCALED_MATMUL = Contract(
    name="grouped_scaled_matmul",
    reference=grouped_scaled_matmul_reference,
    formula="y[group i] = (x[group i] * s_i) @ (W[i] * w_i)^T",
    source="semantics of Transformer Engine's grouped GEMM; torch._scaled_grouped_mm",
    falls_back=False,
)
GROUPED_SCALED_WEIGHT_GRADIENT = Contract(
    name="grouped_scaled_weight_gradient",
    reference=grouped_scaled_weight_gradient_reference,
    formula="main_grad_i += (g_i * u_i)^T @ (x_i * s_i)",
    source="semantics of Transformer Engine's GroupedLinear with fused accumulation",
    falls_back=False,
)
