"""LayerNorm and RMSNorm: torch's kernels if the launch dominates, Triton's if memory traffic does.

The Triton kernels take rows that fit into one program.

Legend: r rows, h hidden size, p programs of the backward pass.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from accel_bridge.backends.cuda.kernels._choice import LARGE, Choice
from accel_bridge.backends.cuda.kernels._launch import Quick, power_of_two, warps
from accel_bridge.kernels import gamma

#: Widest row that one program holds in its registers.
WIDEST = 16384
#: The widest row of which a program of the forward pass has several.
_NARROW = 1024
#: Rows in flight, where they fit into a multiprocessor's shared memory.
_STAGES, _SHARED = 3, 160_000


@Quick
@triton.jit
def _forward(
    x,
    weight,
    bias,
    y,
    means,
    scales,
    stride,
    rows,
    h,
    eps,
    CENTERED: tl.constexpr,
    BIASED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Every p-th row: ``(x - mean) / sqrt(var + eps) * (weight + SHIFT) + bias``."""
    column = tl.arange(0, BLOCK)
    inside = column < h
    gamma = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + SHIFT
    if BIASED:
        beta = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    for number in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        row = number.to(tl.int64)
        value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        if CENTERED:
            mean = tl.sum(value, 0) / h
            value = tl.where(inside, value - mean, 0.0)
            tl.store(means + row, mean)
        scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / h + eps)
        tl.store(scales + row, scale)
        result = value * scale * gamma
        if BIASED:
            result += beta
        tl.store(y + row * h + column, result.to(y.dtype.element_ty), mask=inside)


@Quick
@triton.jit
def _backward(
    grad_y,
    x,
    weight,
    means,
    scales,
    grad_x,
    grad_weight,
    grad_bias,
    stride,
    rows,
    h,
    CENTERED: tl.constexpr,
    BIASED: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Every p-th row, and this program's share of the gradients of weight and bias."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < h
    gamma = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + SHIFT
    for_weight = tl.zeros((BLOCK,), dtype=tl.float32)
    for_bias = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in tl.range(program, rows, tl.num_programs(0), num_stages=STAGES):
        row = number.to(tl.int64)
        gradient = tl.load(grad_y + row * h + column, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        if CENTERED:
            value = tl.where(inside, value - tl.load(means + row), 0.0)
        normal = value * scale
        for_weight += gradient * normal
        if BIASED:
            for_bias += gradient
        scaled = gradient * gamma
        result = scaled - normal * (tl.sum(scaled * normal, 0) / h)
        if CENTERED:
            result -= tl.sum(scaled, 0) / h
        place = grad_x + row * h + column
        tl.store(place, (result * scale).to(grad_x.dtype.element_ty), mask=inside)
    tl.store(grad_weight + program * h + column, for_weight, mask=inside)
    if BIASED:
        tl.store(grad_bias + program * h + column, for_bias, mask=inside)


@lru_cache(maxsize=64)
def _programs(device: torch.device, block: int) -> int:
    """Programs that share rows: each loads its next ones meanwhile, and few add up weights."""
    if device.type == "cpu":
        return 4
    each = max(1, min(16, WIDEST // 2 // block))
    return each * torch.cuda.get_device_properties(device).multi_processor_count


def _launch_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    shift: float,
    centered: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y [r, h], x [r, h] as it was read, means [r], reciprocal deviations [r])."""
    h = x.shape[-1]
    rows = x.reshape(-1, h)
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    count = rows.shape[0]
    y = torch.empty(count, h, dtype=x.dtype, device=x.device)
    scales = torch.empty(count, dtype=torch.float32, device=x.device)
    means = torch.empty_like(scales) if centered else scales
    block = power_of_two(h)
    if count:
        shared = block <= _NARROW
        programs = min(count, _programs(x.device, block)) if shared else count
        _forward[(programs,)](
            rows,
            weight,
            weight if bias is None else bias,
            y,
            means,
            scales,
            rows.stride(0),
            count,
            h,
            eps,
            CENTERED=centered,
            BIASED=bias is not None,
            SHIFT=shift,
            BLOCK=block,
            STAGES=_STAGES if shared else 1,
            num_warps=warps(block),
        )
    return y, rows, means, scales


def _launch_backward(
    grad_y: torch.Tensor,
    rows: torch.Tensor,
    weight: torch.Tensor,
    means: torch.Tensor,
    scales: torch.Tensor,
    shift: float,
    centered: bool,
    biased: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gradient of x [r, h], sums for weight and, if biased, bias [1 or 2, h] in float32)."""
    count, h = rows.shape
    grad_y = grad_y.reshape(-1, h).contiguous()
    grad_x = torch.empty(count, h, dtype=rows.dtype, device=rows.device)
    block = power_of_two(h)
    programs = max(1, min(count, _programs(rows.device, block)))
    pair_bytes = rows.element_size() + grad_y.element_size()
    shares = torch.empty(2 if biased else 1, programs, h, dtype=torch.float32, device=rows.device)
    _backward[(programs,)](
        grad_y,
        rows,
        weight,
        means,
        scales,
        grad_x,
        shares[0],
        shares[-1],
        rows.stride(0),
        count,
        h,
        CENTERED=centered,
        BIASED=biased,
        SHIFT=shift,
        BLOCK=block,
        STAGES=_STAGES if _STAGES * block * pair_bytes <= _SHARED else 1,
        num_warps=warps(block),
    )
    return grad_x, shares.sum(1)


class _Norm(torch.autograd.Function):
    """y [..., h] of x [..., h]; RMSNorm when not centered."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        shift: float,
        centered: bool,
    ) -> torch.Tensor:
        y, rows, means, scales = _launch_forward(x, weight, bias, eps, shift, centered)
        ctx.save_for_backward(rows, weight, means, scales)
        ctx.bias = bias is not None
        ctx.shift, ctx.centered, ctx.shape = shift, centered, x.shape
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight, means, scales = ctx.saved_tensors
        grad_x, sums = _launch_backward(
            gradients[0], rows, weight, means, scales, ctx.shift, ctx.centered, ctx.bias
        )
        sums = sums.to(weight.dtype)
        grad_bias = sums[1] if ctx.bias else None
        return grad_x.view(ctx.shape), sums[0], grad_bias, None, None, None


@lru_cache(maxsize=256)
def choose(elements: int, hidden: int, dtype: torch.dtype, shifted: bool = False) -> Choice:
    """The implementation for an input of ``elements`` in rows of ``hidden``.

    :param shifted: the factor is ``1 + weight``.
    """
    if dtype == torch.float64:
        return Choice("torch", "the Triton kernels compute in float32")
    if hidden > WIDEST:
        return Choice("torch", f"rows above {WIDEST} do not fit into one program")
    if shifted and dtype != torch.float32:
        return Choice("triton", "1 + weight is not rounded before the GEMM")
    if elements < LARGE:
        return Choice("torch", "small: launch time dominates, and torch's is shorter")
    return Choice("triton", "one pass forward and one backward, sums in float32")


def layer_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``layer_norm``."""
    chosen = choose(input.numel(), input.shape[-1], input.dtype, zero_centered_gamma)
    if chosen.name == "triton":
        shift = 1.0 if zero_centered_gamma else 0.0
        output: torch.Tensor = _Norm.apply(input, weight, bias, eps, shift, True)
        return output
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    beta = None if bias is None else bias.to(input.dtype)
    return functional.layer_norm(input, factor.shape, factor, beta, eps)


def rms_norm(
    input: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
) -> torch.Tensor:
    """The contract ``rms_norm``."""
    chosen = choose(input.numel(), input.shape[-1], input.dtype, zero_centered_gamma)
    if chosen.name == "triton":
        shift = 1.0 if zero_centered_gamma else 0.0
        output: torch.Tensor = _Norm.apply(input, weight, None, eps, shift, False)
        return output
    factor = gamma(weight, zero_centered_gamma, input.dtype)
    return functional.rms_norm(input, factor.shape, factor, eps)


#: torch 2.9 has it.
_RMS_NORM = getattr(torch.ops.aten, "_fused_rms_norm", None)


def _by_torch(input: torch.Tensor, weight: torch.Tensor, shifted: bool, centered: bool) -> bool:
    """Whether torch's operators serve a norm with statistics: a cheaper launch, equal dtypes."""
    chosen = choose(input.numel(), input.shape[-1], input.dtype, shifted)
    known = centered or _RMS_NORM is not None
    return chosen.name == "torch" and known and not shifted and weight.dtype == input.dtype


def norm_forward(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    eps: float,
    zero_centered_gamma: bool = False,
    centered: bool,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The contract ``norm_forward``."""
    h = input.shape[-1]
    if _by_torch(input, weight, zero_centered_gamma, centered):
        if centered:
            y, mean, rsigma = torch.native_layer_norm(input, (h,), weight, bias, eps)
            return y, mean.view(-1), rsigma.view(-1)
        assert _RMS_NORM is not None
        y, rsigma = _RMS_NORM(input, (h,), weight, eps)
        return y, None, rsigma.view(-1)
    shift = 1.0 if zero_centered_gamma else 0.0
    y, _, mean, rsigma = _launch_forward(input, weight, bias, eps, shift, centered)
    return y.view(input.shape), mean if centered else None, rsigma


def norm_backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor | None,
    rsigma: torch.Tensor,
    *,
    zero_centered_gamma: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The contract ``norm_backward``."""
    h = input.shape[-1]
    same = grad_output.dtype == input.dtype
    if same and _by_torch(input, weight, zero_centered_gamma, mean is not None):
        rows = (*input.shape[:-1], 1)
        gradient = grad_output.reshape(input.shape)
        if mean is not None:
            return torch.ops.aten.native_layer_norm_backward(  # type: ignore[no-any-return]
                gradient,
                input,
                (h,),
                mean.view(rows),
                rsigma.view(rows),
                weight,
                weight,  # of a bias only its dtype counts
                (True, True, True),
            )
        grad_input, grad_weight = torch.ops.aten._fused_rms_norm_backward(
            gradient, input, (h,), rsigma.view(rows), weight, (True, True)
        )
        return grad_input, grad_weight, None
    flat = input.reshape(-1, h)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    shift = 1.0 if zero_centered_gamma else 0.0
    centered = mean is not None
    means = rsigma if mean is None else mean
    grad_input, sums = _launch_backward(
        grad_output, flat, weight, means, rsigma, shift, centered, centered
    )
    sums = sums.to(weight.dtype)
    return grad_input.view(input.shape), sums[0], sums[1] if centered else None


def forward_supports(input: torch.Tensor, *_: object, **__: object) -> str | None:
    """Where :func:`norm_forward` applies."""
    return _supports(input)


def backward_supports(
    grad_output: torch.Tensor, input: torch.Tensor, *_: object, **__: object
) -> str | None:
    """Where :func:`norm_backward` applies."""
    return _supports(input)


def _supports(input: torch.Tensor) -> str | None:
    if input.dtype == torch.float64:
        return "the Triton kernels compute in float32"
    if input.shape[-1] > WIDEST:
        return f"rows above {WIDEST} do not fit into one program"
    return None


def examples() -> list[tuple[str, str, str]]:
    """Usual calls with what serves them: (call, implementation, why)."""
    found = []
    for tokens, hidden in ((2048, 768), (16384, 768), (4096, 4096)):
        choice = choose(tokens * hidden, hidden, torch.bfloat16)
        found.append((f"{tokens} rows of {hidden}", choice.name, choice.why))
    return found
