"""FP8: formats, rounding and scales, which kernels for one tensor and for all experts share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FORMATS = {
    torch.float8_e4m3fn: {"FORMAT": tl.float8e4nv, "LARGEST": 448.0},
    torch.float8_e5m2: {"FORMAT": tl.float8e5, "LARGEST": 57344.0},
}
#: Programs that look for the largest magnitude, and numbers that each holds: four for every
#: multiprocessor of an H200.
PROGRAMS, NUMBERS = 528, 8192
#: The sign and the exponent of a float32.
EXPONENT = -0x800000
#: Numbers of a row that share a factor.
BLOCK = 128


@triton.jit
def rounded(values, LARGEST: tl.constexpr, FORMAT: tl.constexpr):
    """Float32 numbers in FP8, to nearest, ties to even; those beyond the largest become it."""
    # Not a minimum and a maximum, which would swallow NaN.
    values = tl.where(values > LARGEST, LARGEST, values)
    return tl.where(values < -LARGEST, -LARGEST, values).to(FORMAT)


@triton.jit
def scale_of(
    amax, epsilon, LARGEST: tl.constexpr, INFINITE: tl.constexpr, POWER_OF_2: tl.constexpr
):
    """What numbers up to ``amax`` are multiplied with; 1 for an amax of 0, infinity or NaN."""
    known = (amax == amax) & (amax < float("inf"))
    amax = tl.maximum(amax, epsilon)
    known = known & (amax > 0.0)
    scale = tl.div_rn(amax * 0.0 + LARGEST, tl.where(known, amax, 1.0))
    scale = tl.where(scale > INFINITE, INFINITE, scale)
    if POWER_OF_2:
        # The sign and the exponent of a float32.
        bits = scale.to(tl.int32, bitcast=True) & -0x800000
        scale = bits.to(tl.float32, bitcast=True)
    return tl.where(known, scale, 1.0)


@triton.jit
def scales_of(
    amax, epsilon, kept, LARGEST: tl.constexpr, INFINITE: tl.constexpr, SIZE: tl.constexpr
):
    """:func:`scale_of` for SIZE blocks; ``kept`` are the bits of a scale that are kept."""
    known = (amax == amax) & (amax < float("inf"))
    amax = tl.maximum(amax, epsilon)
    known = known & (amax > 0.0)
    scale = tl.div_rn(tl.full((SIZE,), LARGEST, tl.float32), tl.where(known, amax, 1.0))
    scale = tl.where(scale > INFINITE, INFINITE, scale)
    scale = (scale.to(tl.int32, bitcast=True) & kept).to(tl.float32, bitcast=True)
    return tl.where(known, scale, 1.0)
