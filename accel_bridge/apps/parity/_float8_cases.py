"""The cases of FP8: quantizing bit by bit, and products of quantized tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch

from accel_bridge.apps.parity._case import DTYPES, Case, Generator, Inputs, normal
from accel_bridge.apps.parity._grouped_float8_cases import grouped_float8_cases
from accel_bridge.apps.parity._tolerances import Rule
from accel_bridge.kernels.float8 import float8_block_quantize_reference

_FORMATS: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def float8_cases() -> Iterator[Case]:
    """Every case of the FP8 contracts, those of several experts among them."""
    yield from _quantize_cases()
    yield from _current_cases()
    yield from _transposed_cases()
    yield from _block_cases()
    yield from _product_cases()
    yield from grouped_float8_cases()


def _numbers(generator: Generator, *size: int, spread: float) -> torch.Tensor:
    """Numbers of many magnitudes: from below the format's smallest to beyond its largest."""
    return normal(generator, *size) * 10.0 ** (normal(generator, *size) * spread)


def _quantize_inputs(
    generator: Generator, size: tuple[int, ...], scale: float, dtype: torch.dtype, spread: float
) -> Inputs:
    return {
        "input": _numbers(generator, *size, spread=spread),
        "scale": torch.full((1,), scale, dtype=torch.float64),
        "dtype": dtype,
        "amax": torch.zeros(1, dtype=torch.float64),
    }


def _quantize_cases() -> Iterator[Case]:
    settings: tuple[tuple[str, tuple[int, ...], float, float], ...] = (
        ("one scale", (64, 96), 64.0, 0.5),
        ("many magnitudes", (33, 70), 1.0, 2.0),
        ("beyond the largest", (16, 48), 3e4, 1.0),
        ("odd sizes", (3, 5, 7), 17.3, 1.0),
        ("zeros", (16, 16), 0.0, 0.0),
    )
    for dtype in DTYPES:
        for kind, fp8 in _FORMATS.items():
            for name, size, scale, spread in settings:
                yield Case(
                    "float8_quantize",
                    f"{kind} {name}",
                    dtype,
                    partial(_quantize_inputs, size=size, scale=scale, dtype=fp8, spread=spread),
                    outputs=("output",),
                    float32=("scale", "amax"),
                    rule=Rule.BITWISE,
                )


def _current_inputs(
    generator: Generator, size: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any]
) -> Inputs:
    one = torch.zeros(1, dtype=torch.float64)
    numbers = _numbers(generator, *size, spread=options.get("spread", 1.0))
    if hole := options.get("hole"):
        numbers.view(-1)[7] = hole
    return {
        "input": numbers,
        "dtype": dtype,
        "amax": one,
        "scale": one.clone(),
        "power_of_2": options.get("power_of_2", False),
        "epsilon": options.get("epsilon", 0.0),
    }


def _current_cases() -> Iterator[Case]:
    settings: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
        ("any scale", (64, 96), {}),
        ("powers of two", (33, 70), {"power_of_2": True}),
        ("epsilon", (3, 5, 7), {"epsilon": 1e6}),
        ("many tiles", (130, 300), {"spread": 2.0}),
        ("infinite", (16, 16), {"hole": float("inf")}),
    )
    for dtype in DTYPES:
        for kind, fp8 in _FORMATS.items():
            for name, size, options in settings:
                yield Case(
                    "float8_current_quantize",
                    f"{kind} {name}",
                    dtype,
                    partial(_current_inputs, size=size, dtype=fp8, options=options),
                    outputs=("output", "factor"),
                    float32=("scale", "amax"),
                    rule=Rule.BITWISE,
                )


def _transposed_inputs(
    generator: Generator, size: tuple[int, ...], dtype: torch.dtype, current: bool
) -> Inputs:
    """With room for the transpose, and for what is measured."""
    one = torch.zeros(1, dtype=torch.float64)
    inputs: dict[str, Any] = {
        "input": _numbers(generator, *size, spread=0.5),
        "dtype": dtype,
        "amax": one,
        "scale": one + 64.0,
        "transposed": torch.zeros(size[-1:] + size[:-1], dtype=torch.float32).to(dtype),
    }
    return inputs | ({"power_of_2": False, "epsilon": 0.0} if current else {})


def _transposed_cases() -> Iterator[Case]:
    """The transpose that is written beside the numbers."""
    for dtype in DTYPES:
        for kind, fp8 in _FORMATS.items():
            for current in (False, True):
                for size in ((16, 16), (3, 5, 7), (128, 128), (130, 300), (256, 512)):
                    yield Case(
                        "float8_current_quantize" if current else "float8_quantize",
                        f"{kind} transpose of {' x '.join(map(str, size))}",
                        dtype,
                        partial(_transposed_inputs, size=size, dtype=fp8, current=current),
                        float32=("scale", "amax"),
                        changed=("transposed", "amax", *(("scale",) if current else ())),
                        rule=Rule.BITWISE,
                    )


def _block_inputs(
    generator: Generator, m: int, k: int, rows: int, power_of_2: bool, dtype: torch.dtype
) -> Inputs:
    return {
        "input": _numbers(generator, m, k, spread=1.0),
        "dtype": dtype,
        "rows": rows,
        "power_of_2": power_of_2,
        "epsilon": 0.0 if power_of_2 else 1e-3,
    }


def _block_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for kind, fp8 in _FORMATS.items():
            for rows in (1, 128):
                for m, k in ((128, 128), (256, 384), (130, 200), (5, 16)):
                    for power_of_2 in (True, False):
                        scales = "powers of two" if power_of_2 else "any scale"
                        yield Case(
                            "float8_block_quantize",
                            f"{kind} {rows} x 128 of {m} x {k}, {scales}",
                            dtype,
                            partial(
                                _block_inputs,
                                m=m,
                                k=k,
                                rows=rows,
                                power_of_2=power_of_2,
                                dtype=fp8,
                            ),
                            outputs=("output", "scale_inv"),
                            rule=Rule.BITWISE,
                        )


def _operand(
    generator: Generator, size: tuple[int, int], rows: int | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 numbers and their scale_inv: one (None) or one for each block."""
    values = normal(generator, *size)
    if rows is None:
        scale = torch.finfo(dtype).max / values.abs().max()
        return (values * scale).float().to(dtype), scale.reciprocal().view(1)
    # Blocks of different magnitudes.
    values = values * (1 + torch.arange(size[1]) // 128)
    numbers, scale_inv = float8_block_quantize_reference(values.float(), dtype=dtype, rows=rows)
    return numbers, scale_inv.double()


def _product_inputs(
    generator: Generator,
    sizes: tuple[int, int, int],
    rows: tuple[int | None, int | None],
    gradient: bool,
    bias: bool,
    dtype: torch.dtype,
) -> Inputs:
    m, n, k = sizes
    fp8 = torch.float8_e5m2 if gradient else torch.float8_e4m3fn
    a, a_scale_inv = _operand(generator, (m, k), rows[0], fp8)
    b, b_scale_inv = _operand(generator, (n, k), rows[1], torch.float8_e4m3fn)
    inputs: dict[str, Any] = {
        "a": a,
        "b": b,
        "a_scale_inv": a_scale_inv,
        "b_scale_inv": b_scale_inv,
        "dtype": dtype,
        "precise": True,
    }
    return inputs | ({"bias": normal(generator, n)} if bias else {})


def _product_cases() -> Iterator[Case]:
    kinds: tuple[tuple[str, tuple[int | None, int | None]], ...] = (
        ("one factor each", (None, None)),
        ("1 x 128 and 128 x 128", (1, 128)),
        ("1 x 128 both", (1, 1)),
        ("128 x 128 and 1 x 128", (128, 1)),
    )
    sizes = ((64, 48, 96), (256, 128, 512), (136, 272, 336))
    settings = [(size, gradient) for size in sizes for gradient in (False, True)]
    # Not float32: tensor cores sum FP8 products in fewer bits than it has.
    for dtype in (torch.float16, torch.bfloat16):
        for kind, rows in kinds:
            for (m, n, k), gradient in settings:
                name = f"{kind}, m={m} n={n} k={k}" + (", e5m2, bias" if gradient else "")
                yield Case(
                    "scaled_matmul",
                    name,
                    dtype,
                    partial(
                        _product_inputs,
                        sizes=(m, n, k),
                        rows=rows,
                        gradient=gradient,
                        bias=gradient,
                        dtype=dtype,
                    ),
                    float32=("a_scale_inv", "b_scale_inv"),
                )
