"""Contracts of FP8: quantizing, GEMMs and weight gradients, of one weight or of all experts.

Tensors are quantized with a given scale, with their own, or by blocks. An FP8 tensor is its numbers
(``torch.float8_e4m3fn`` or ``torch.float8_e5m2``) and a float32 ``scale_inv`` that gives back the
numbers that were quantized: for the whole tensor, or for each block. Rows of experts are sorted by
expert, and every expert has scales of its own.

Legend: m rows, n columns, k the size that a GEMM sums over; for experts t rows of all of them, e
experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from accel_bridge.kernels import active
from accel_bridge.kernels._contract import Contract

#: Numbers of a row that share a factor.
BLOCK: Final = 128
#: The same in the MX formats.
MX_BLOCK: Final = 32


def float8_scale(
    amax: torch.Tensor,
    dtype: torch.dtype,
    *,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    largest: float = torch.finfo(torch.float32).max,
) -> torch.Tensor:
    """What numbers up to ``amax`` are multiplied with before they are rounded to ``dtype``.

    :param amax: any shape, float32: largest magnitudes.
    :param dtype: an FP8 dtype.
    :param power_of_2: round the scale down to a power of two.
    :param epsilon: least value taken for a largest magnitude.
    :param largest: what an infinite scale becomes.
    :returns: the scales; 1 for an amax of 0, infinity or NaN.
    """
    amax = amax.clamp(min=epsilon) if epsilon else amax
    # A number divided by a tensor would be its reciprocal multiplied: rounded twice.
    scale = (torch.full_like(amax, torch.finfo(dtype).max) / amax).clamp(max=largest)
    if power_of_2:
        # The sign and the exponent of a float32.
        scale = (scale.view(torch.int32) & -0x800000).view(torch.float32)
    return torch.where((amax > 0) & torch.isfinite(amax), scale, 1.0)


@cache
def _casts(device: str) -> bool:
    """Whether the device converts FP8 numbers; one without the dtype only moves their bytes."""
    if device in ("cpu", "cuda", "meta"):
        return True
    try:
        torch.ones(1, device=device).to(torch.float8_e4m3fn)
    except (RuntimeError, TypeError):
        active.say_once("FP8 is emulated: the device has no such format")
        return False
    return True


@cache
def _numbers(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The numbers of the 256 bytes, float32."""
    return torch.arange(256).to(torch.uint8).view(dtype).float().to(device)


def widened(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """FP8 or E8M0 numbers in ``dtype``, also where the device cannot convert them."""
    if _casts(numbers.device.type):
        return numbers.to(dtype)
    table = _numbers(numbers.dtype, numbers.device)
    return table[numbers.view(torch.uint8).int()].to(dtype)


def rounded(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """To nearest, ties to even; numbers beyond the largest become it.

    :param numbers: float32.
    :param dtype: an FP8 dtype.
    """
    largest = torch.finfo(dtype).max
    numbers = numbers.clamp(-largest, largest)
    return numbers.to(dtype) if _casts(numbers.device.type) else rounded_bits(numbers, dtype)


def rounded_bits(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same in arithmetic of float32 and int32 alone; no number is beyond the largest."""
    mantissa, bias = (3, 7) if dtype == torch.float8_e4m3fn else (2, 15)
    bits = numbers.view(torch.int32)
    magnitude, sign = bits & 0x7FFFFFFF, (bits >> 24) & 0x80
    cut = 23 - mantissa
    half = (1 << (cut - 1)) - 1 + ((magnitude >> cut) & 1)
    normal = ((magnitude + half) >> cut) - ((127 - bias) << mantissa)
    # Added to a number whose last bit is the least subnormal, the sum is rounded to those.
    ground = 24 - bias - mantissa
    low = (numbers.abs() + 2.0**ground).view(torch.int32) - ((127 + ground) << 23)
    made = torch.where(magnitude < (128 - bias) << 23, low, normal)
    made = torch.where(magnitude > 0x7F800000, 0x7F, made)
    return (made | sign).to(torch.uint8).view(dtype)


@torch.no_grad()
def float8_quantize_reference(
    input: torch.Tensor,
    scale: torch.Tensor,
    *,
    dtype: torch.dtype,
    amax: torch.Tensor | None = None,
    transposed: torch.Tensor | None = None,
) -> torch.Tensor:
    """``round(input * scale)``, the product in float32, beyond the largest number it.

    :param input: any shape, float16, bfloat16 or float32.
    :param scale: one float32 number.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param amax: one float32 number; becomes the largest magnitude of the input, in place.
    :param transposed: [k, ..], in ``dtype``, contiguous; becomes the result's transpose, in place.
    :returns: contiguous, in the input's shape and in ``dtype``.
    """
    wide = input.contiguous().float()
    if amax is not None:
        largest = wide.abs().amax() if wide.numel() else wide.new_zeros(())
        amax.copy_(largest.reshape(amax.shape))
    numbers = rounded(wide * scale.reshape(()), dtype)
    if transposed is not None:
        _turn(numbers, transposed)
    return numbers


def _turn(numbers: torch.Tensor, transposed: torch.Tensor) -> None:
    """The transpose of ``numbers`` [.., k] into ``transposed`` [k, ..]."""
    # Not every device copies FP8 numbers.
    flat = numbers.view(torch.uint8).reshape(-1, transposed.shape[0] if transposed.dim() else 1)
    transposed.view(torch.uint8).view(flat.shape[1], flat.shape[0]).copy_(flat.t())


@torch.no_grad()
def float8_current_quantize_reference(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    power_of_2: bool = False,
    epsilon: float = 0.0,
    transposed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize with the scale that the input's own largest magnitude gives.

    :param input: [.., k], float16, bfloat16 or float32.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param power_of_2: as :func:`float8_scale`.
    :param epsilon: as :func:`float8_scale`.
    :param transposed: [k, ..], in ``dtype``, contiguous; becomes the result's transpose, in place.
    :returns: numbers in the input's shape, and the reciprocal of the scale [1].
    """
    wide = input.float()
    amax = wide.abs().amax() if wide.numel() else wide.new_zeros(())
    scale = float8_scale(amax, dtype, power_of_2=power_of_2, epsilon=epsilon)
    numbers = float8_quantize_reference(input, scale, dtype=dtype, transposed=transposed)
    return numbers, scale.reciprocal().reshape(1)


def blocks_of(size: int) -> int:
    """How many blocks hold ``size`` numbers."""
    return -(-size // BLOCK)


@torch.no_grad()
def float8_block_quantize_reference(
    input: torch.Tensor,
    *,
    dtype: torch.dtype,
    rows: int,
    power_of_2: bool = True,
    epsilon: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize with a factor for each ``rows`` x 128 numbers.

    :param input: [m, k], float16, bfloat16 or float32; blocks at the edges are cut.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param rows: 1 or 128.
    :param power_of_2: scale_inv are powers of two.
    :param epsilon: least value taken for a block's largest magnitude.
    :returns: numbers [m, k] in ``dtype``; scale_inv [m / rows, k / 128] in float32, rounded up.
    """
    m, k = input.shape
    down, across = -(-m // rows), blocks_of(k)
    padding = (0, across * BLOCK - k, 0, down * rows - m)
    wide = torch.nn.functional.pad(input.float(), padding).view(down, rows, across, BLOCK)
    scale = float8_scale(
        wide.abs().amax((1, 3)),
        dtype,
        power_of_2=power_of_2,
        epsilon=epsilon,
        largest=torch.finfo(input.dtype).max,
    )
    numbers = rounded(wide * scale[:, None, :, None], dtype).view(torch.uint8)
    numbers = numbers.view(down * rows, across * BLOCK)[:m, :k].contiguous()
    return numbers.view(dtype), scale.reciprocal()


def mx_scale_inv(amax: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The power of two, as E8M0, that blocks with these largest magnitudes are divided by.

    The least one whose block does not overflow; NaN and infinity become E8M0's NaN and largest.

    :param amax: any shape, float32.
    :param dtype: an FP8 dtype.
    :returns: uint8, the biased exponents.
    """
    bits = (amax * (1.0 / torch.finfo(dtype).max)).view(torch.int32)
    exponent, mantissa = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    rounds_up = (mantissa > 0) & (exponent != 0xFE) & ((exponent > 0) | (mantissa > 0x400000))
    exponent = torch.where(amax.isinf(), 0xFE, exponent + rounds_up)
    return torch.where(amax.isnan(), 0xFF, exponent).to(torch.uint8)


def mx_scale(scale_inv: torch.Tensor) -> torch.Tensor:
    """The reciprocals of E8M0 numbers: float32, exact.

    :param scale_inv: uint8, biased exponents.
    """
    biased = scale_inv.to(torch.int32)
    bits = torch.where(biased == 0xFE, 0x400000, (0xFE - biased) * (1 << 23))
    return torch.where(biased == 0xFF, 0x7FFFFFFF, bits).view(torch.float32)


@torch.no_grad()
def mxfp8_quantize(
    input: torch.Tensor, *, dtype: torch.dtype, rows: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize with an E8M0 factor for each 32 numbers of a row. No backend has a kernel of it.

    :param input: [m, k], float16, bfloat16 or float32; k is a multiple of 32.
    :param dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.
    :param rows: 32: the factor of 32 x 32 numbers, which their rows repeat; m is a multiple of it.
    :returns: numbers [m, k] in ``dtype``; biased exponents [m, k / 32], uint8.
    """
    m, k = input.shape
    tiles = input.float().view(m // rows, rows, k // MX_BLOCK, MX_BLOCK)
    scale_inv = mx_scale_inv(tiles.abs().amax((1, 3)), dtype)
    numbers = rounded(tiles * mx_scale(scale_inv)[:, None, :, None], dtype)
    return numbers.view(m, k), scale_inv.repeat_interleave(rows, 0) if rows > 1 else scale_inv


def float8_dequantize(
    numbers: torch.Tensor, scale_inv: torch.Tensor, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The numbers times their ``scale_inv``, computed in ``dtype``.

    :param numbers: [m, k], FP8; any shape with one ``scale_inv``.
    :param scale_inv: float32: one number, or one for each block: [m, k / 128] or
        [m / 128, k / 128]; E8M0 [m, k / 32].
    :returns: in the shape of ``numbers`` and in ``dtype``.
    """
    wide = widened(numbers, dtype)
    block = MX_BLOCK if scale_inv.dtype == torch.float8_e8m0fnu else BLOCK
    if scale_inv.numel() == 1 and block == BLOCK:
        return wide * scale_inv.reshape(()).to(dtype)
    m, k = numbers.shape
    each = widened(scale_inv, dtype) if block == MX_BLOCK else scale_inv.to(dtype)
    if each.shape[0] != m:
        each = each.repeat_interleave(BLOCK, 0)[:m]
    return wide * each.repeat_interleave(block, 1)[:, :k]


@torch.no_grad()
def scaled_matmul_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale_inv: torch.Tensor,
    b_scale_inv: torch.Tensor,
    *,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    precise: bool = True,
) -> torch.Tensor:
    """``(a * a_scale_inv) @ (b * b_scale_inv)^T + bias``, rounded once.

    :param a: [m, k], FP8.
    :param b: [n, k], FP8; not both operands are E5M2.
    :param a_scale_inv: float32: one number, or one for each block: [m, k / 128] or
        [m / 128, k / 128].
    :param b_scale_inv: likewise for b; not both operands have blocks of 128 rows.
    :param dtype: of the result: float16, bfloat16 or float32; float64 with float64 scale_inv.
    :param bias: [n], any float dtype.
    :param precise: sum in float32; otherwise a device may sum in fewer bits.
    :returns: [m, n] in ``dtype``.
    """
    wide = torch.float32
    if a_scale_inv.dtype == torch.float64:
        wide = dtype = torch.float64
    gemm = float8_dequantize(a, a_scale_inv, wide) @ float8_dequantize(b, b_scale_inv, wide).t()
    return (gemm if bias is None else gemm + bias.to(wide)).to(dtype)


FLOAT8_QUANTIZE = Contract(
    name="float8_quantize",
    reference=float8_quantize_reference,
    formula="q = round(x * scale), amax = max(abs(x))",
    source="Micikevicius et al. 2022, arXiv:2209.05433; semantics of Transformer Engine's quantize",
    falls_back=False,
)
FLOAT8_CURRENT_QUANTIZE = Contract(
    name="float8_current_quantize",
    reference=float8_current_quantize_reference,
    formula="q = round(x * s) with s = max(FP8) / max(abs(x))",
    source="semantics of Transformer Engine's current scaling",
    falls_back=False,
)
FLOAT8_BLOCK_QUANTIZE = Contract(
    name="float8_block_quantize",
    reference=float8_block_quantize_reference,
    formula="q = round(x / s) with s = max(abs(x)) / max(FP8) of each block",
    source="DeepSeek-AI 2024, arXiv:2412.19437; semantics of Transformer Engine's block scaling",
    falls_back=False,
)
SCALED_MATMUL = Contract(
    name="scaled_matmul",
    reference=scaled_matmul_reference,
    formula="(a * s_a) @ (b * s_b)^T + bias",
    source="semantics of torch._scaled_mm",
    falls_back=False,
)


def _check_rows(splits: Sequence[int], rows: int) -> None:
    if sum(splits) != rows:
        raise ValueError(f"counts {list(splits)} for {rows} rows")


def aligned(splits: Sequence[int], align_size: int) -> list[int]:
    """Each number of rows, up to a multiple of ``align_size``."""
    return [-(-rows // align_size) * align_size for rows in splits]


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
    align_size: int = 1,
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
    :param transposed: in ``dtype``; becomes the transposes [k, rows], expert after expert.
    :param align_size: zeros after an expert's rows make those of its transpose a multiple of it.
    :returns: numbers [t, k], contiguous; the reciprocals of the scales [e].
    :raises ValueError: counts that do not sum to t.
    """
    _check_rows(splits, input.shape[0])
    k, device = input.shape[1], input.device
    numbers = torch.empty(input.shape, dtype=dtype, device=device)
    ones = torch.ones(len(splits), dtype=torch.float32, device=device)
    scale_inv = ones if scale is None else scale.reciprocal()
    targets: list[Any] = [None] * len(splits)
    if transposed is not None:
        transposed.view(torch.uint8).zero_()
        targets = parts_of_transposed(transposed, aligned(splits, align_size), k)
    groups = zip(input.split(list(splits)), numbers.split(list(splits)), targets, strict=True)
    for index, (rows, result, target) in enumerate(groups):
        if not len(rows):
            continue
        if scale is None:
            made, factor = float8_current_quantize_reference(
                rows, dtype=dtype, power_of_2=power_of_2, epsilon=epsilon
            )
            scale_inv[index : index + 1] = factor
        else:
            made = float8_quantize_reference(rows, scale[index], dtype=dtype)
        result.view(torch.uint8).copy_(made.view(torch.uint8))
        if target is not None:
            target.view(torch.uint8)[:, : len(rows)] = made.view(torch.uint8).t()
        if amax is not None:
            amax[index] = rows.float().abs().amax()
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
    accumulate: bool = True,
) -> None:
    """``main_grad_i += grad_output_i^T @ input_i`` from FP8 transposes, in place.

    GEMMs and sums have main_grad's precision.

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
    :param accumulate: if False, the GEMMs replace what the sums hold; no rows are zeros.
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
        sums = main_grad[place : place + m * k].view(m, k)
        if not accumulate:
            sums.zero_()
        if not splits[index]:
            continue
        one = slice(index, index + 1)
        gemm = scaled_matmul_reference(
            gradient,
            x,
            (grad_scale_inv[blocks].t() if by_block else grad_scale_inv[one]).to(main_grad.dtype),
            (input_scale_inv[blocks].t() if by_block else input_scale_inv[one]).to(main_grad.dtype),
            dtype=main_grad.dtype,
        )
        sums += gemm


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
