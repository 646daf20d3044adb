"""The cases of FP8, of one weight and of several experts: quantizing bit by bit, and GEMMs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from accel_bridge.apps.parity._case import table
from accel_bridge.kernels.cases import DTYPES, Case, Generator, Inputs, Rule, normal
from accel_bridge.kernels.float8 import (
    aligned,
    float8_block_quantize_reference,
    transposed_blocks,
)

_FORMATS: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
#: Larger than the largest magnitude of some blocks, and smaller than that of others.
EPSILON: Final = 100.0
#: Name, rows of each expert, k, m.
_SHAPES: Final[tuple[tuple[str, tuple[int, ...], int, int], ...]] = (
    ("even", (32, 32, 32, 32), 64, 48),
    ("idle experts", (0, 48, 0, 16, 0), 96, 32),
    ("one expert", (160,), 128, 80),
    ("many tiles", (16, 272, 144), 304, 272),
    ("any rows", (1, 7, 130, 3), 48, 32),
)
_KINDS: Final = (("a factor each", False), ("blocks", True))


def grouped_float8_cases() -> Iterator[Case]:
    yield from _grouped_quantize_cases()
    yield from _turn_cases()
    yield from _grouped_gemm_cases()
    yield from _gradient_cases()


def _rows(generator: Generator, splits: tuple[int, ...], k: int) -> torch.Tensor:
    """Rows of experts of different magnitudes, many magnitudes in each."""
    numbers = normal(generator, sum(splits), k) * 10.0 ** normal(generator, sum(splits), k)
    scale = [10.0**index for index in range(len(splits)) for _ in range(splits[index])]
    return numbers * torch.tensor(scale, dtype=torch.float64)[:, None]


def _grouped_quantize_inputs(
    generator: Generator,
    splits: tuple[int, ...],
    k: int,
    dtype: torch.dtype,
    options: dict[str, Any],
    changes: bool,
) -> Inputs:
    experts = len(splits)
    inputs: dict[str, Any] = {
        "input": _rows(generator, splits, k),
        "splits": splits,
        "dtype": dtype,
        "scale": None,
    }
    if options.get("scale"):
        # As in a module's state: those of inputs lie between others.
        inputs["scale"] = torch.logspace(2, -4, 3 * experts, dtype=torch.float64)[::3]
    if changes:
        inputs["amax"] = torch.full((experts,), 0.25, dtype=torch.float64)
        align_size = inputs["align_size"] = 16 if dtype == torch.float8_e5m2 else 1
        size = sum(aligned(splits, align_size)) * k
        inputs["transposed"] = torch.full((size,), 7.0, dtype=torch.float32).to(dtype)
    chosen = {name: value for name, value in options.items() if name != "scale"}
    return {**inputs, **chosen}


def _grouped_quantize_cases() -> Iterator[Case]:
    settings: tuple[tuple[str, dict[str, Any]], ...] = (
        ("own scales", {}),
        ("powers of two, epsilon", {"power_of_2": True, "epsilon": 1e4}),
        ("given scales", {"scale": True}),
    )
    for changes in (False, True):
        yield from table(
            "grouped_float8_quantize",
            _grouped_quantize_inputs,
            [
                (f"{kind} {name}, {words}{', transposes' * changes}", splits, k, fp8, own, changes)
                for kind, fp8 in _FORMATS.items()
                for name, splits, k, _ in _SHAPES
                for words, own in settings
            ],
            outputs=("output", "scale_inv"),
            float32=("scale", "amax"),
            changed=("transposed", "amax") if changes else (),
            rule=Rule.BITWISE,
        )


def _turn_inputs(
    generator: Generator, splits: tuple[int, ...], k: int, dtype: torch.dtype, power_of_2: bool
) -> Inputs:
    return {
        "input": _rows(generator, splits, k),
        "splits": splits,
        "dtype": dtype,
        "power_of_2": power_of_2,
        "epsilon": 0.0 if power_of_2 else EPSILON,
    }


def _turn_cases() -> Iterator[Case]:
    return table(
        "grouped_float8_block_transpose",
        _turn_inputs,
        [
            (f"{kind} {name}, {_scales(power_of_2)}", splits, k, fp8, power_of_2)
            for kind, fp8 in _FORMATS.items()
            for name, splits, k, _ in _SHAPES
            for power_of_2 in (True, False)
        ],
        outputs=("output", "scale_inv"),
        rule=Rule.BITWISE,
    )


def _scales(power_of_2: bool) -> str:
    return "powers of two" if power_of_2 else "any scale"


def _by_blocks(
    values: torch.Tensor, rows: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 numbers with a factor for each block, of different magnitudes."""
    values = values * (1 + torch.arange(values.shape[1]) // 128)
    numbers, scale_inv = float8_block_quantize_reference(values.float(), dtype=dtype, rows=rows)
    return numbers, scale_inv.double()


def _grouped_gemm_inputs(
    generator: Generator,
    splits: tuple[int, ...],
    sizes: tuple[int, int],
    by_block: bool,
    gradient: bool,
    dtype: torch.dtype,
) -> Inputs:
    k, m = sizes
    fp8 = torch.float8_e5m2 if gradient else torch.float8_e4m3fn
    experts = len(splits)
    if by_block:
        a, a_scale_inv = _by_blocks(normal(generator, sum(splits), k), 1, fp8)
        made = [
            _by_blocks(normal(generator, m, k), 128, torch.float8_e4m3fn) for _ in range(experts)
        ]
        b = torch.stack([numbers.view(torch.uint8) for numbers, _ in made])
        b, b_scale_inv = b.view(torch.float8_e4m3fn), torch.stack([one for _, one in made])
    else:
        a = (normal(generator, sum(splits), k) * 16).float().to(fp8)
        b = (normal(generator, experts, m, k) * 16).float().to(torch.float8_e4m3fn)
        a_scale_inv = 1 / 16 * (1 + torch.arange(experts, dtype=torch.float64))
        b_scale_inv = 0.7 ** torch.arange(experts, dtype=torch.float64)
    return {
        "a": a,
        "b": b,
        "a_scale_inv": a_scale_inv,
        "b_scale_inv": b_scale_inv,
        "splits": splits,
        "dtype": dtype,
        "precise": not gradient or by_block,
    }


def _grouped_gemm_cases() -> Iterator[Case]:
    # Not float32: tensor cores sum FP8 GEMMs in fewer bits than it has.
    for dtype in DTYPES[1:]:
        yield from table(
            "grouped_scaled_matmul",
            _grouped_gemm_inputs,
            [
                (f"{name}, {kind}{', e5m2' * gradient}", splits, (k, m), by_block, gradient, dtype)
                for name, splits, k, m in _SHAPES
                for kind, by_block in _KINDS
                for gradient in (False, True)
            ],
            dtypes=[dtype],
            float32=("a_scale_inv", "b_scale_inv"),
        )


def _whole_numbers(generator: Generator, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers, whose sums have no more bits than tensor cores keep."""
    return torch.randint(-4, 5, (count,), generator=generator).float().to(dtype)


def _gradient_inputs(
    generator: Generator,
    splits: tuple[int, ...],
    sizes: tuple[int, int],
    by_block: bool,
    dtype: torch.dtype,
    accumulate: bool,
) -> Inputs:
    k, m = sizes
    # The last expert's sums come first, with a gap behind each, as in a buffer of gradients.
    step = m * k + 4
    experts, blocks = len(splits), sum(transposed_blocks(splits))
    scale_inv = [
        2.0 ** -(torch.arange(blocks * size, dtype=torch.float64) % 5).view(blocks, size)
        if by_block
        else 0.7 ** torch.arange(experts, dtype=torch.float64)
        for size in sizes
    ]
    return {
        "input": _whole_numbers(generator, sum(splits) * k, torch.float8_e4m3fn),
        "grad_output": _whole_numbers(generator, sum(splits) * m, dtype),
        "input_scale_inv": scale_inv[0],
        "grad_scale_inv": scale_inv[1],
        "splits": splits,
        "main_grad": normal(generator, step * experts),
        "accumulate": accumulate,
        "places": [step * place for place in reversed(range(experts))],
        "sizes": sizes,
    }


def _gradient_cases() -> Iterator[Case]:
    return table(
        "grouped_scaled_weight_gradient",
        _gradient_inputs,
        [
            (f"{kind} {name}, {how}{', replaced' * (not adds)}", splits, (k, m), by, fp8, adds)
            for kind, fp8 in _FORMATS.items()
            for name, splits, k, m in _SHAPES
            for how, by in _KINDS
            for adds in ((True, False) if "expert" in name else (True,))
        ],
        dtypes=[torch.float32],
        changed=("main_grad",),
    )


def float8_cases() -> Iterator[Case]:
    """Every case of the FP8 contracts, those of several experts among them."""
    yield from _quantize_cases()
    yield from _current_cases()
    yield from _transposed_cases()
    yield from _block_cases()
    yield from _gemm_cases()
    yield from grouped_float8_cases()


def _numbers(generator: Generator, *size: int, std: float) -> torch.Tensor:
    """Numbers of many magnitudes: from below the format's smallest to beyond its largest."""
    return normal(generator, *size) * 10.0 ** (normal(generator, *size) * std)


def _quantize_inputs(
    generator: Generator, size: tuple[int, ...], scale: float, dtype: torch.dtype, std: float
) -> Inputs:
    return {
        "input": _numbers(generator, *size, std=std),
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
    return table(
        "float8_quantize",
        _quantize_inputs,
        [
            (f"{kind} {name}", size, scale, fp8, std)
            for kind, fp8 in _FORMATS.items()
            for name, size, scale, std in settings
        ],
        float32=("scale", "amax"),
        rule=Rule.BITWISE,
    )


def _current_inputs(
    generator: Generator, size: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any]
) -> Inputs:
    numbers = _numbers(generator, *size, std=options.get("std", 1.0))
    if hole := options.get("hole"):
        numbers.view(-1)[7] = hole
    return {
        "input": numbers,
        "dtype": dtype,
        "power_of_2": options.get("power_of_2", False),
        "epsilon": options.get("epsilon", 0.0),
    }


def _current_cases() -> Iterator[Case]:
    settings: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
        ("any scale", (64, 96), {}),
        ("powers of two", (33, 70), {"power_of_2": True}),
        ("epsilon", (3, 5, 7), {"epsilon": 1e6}),
        ("many tiles", (130, 300), {"std": 2.0}),
        ("infinite", (16, 16), {"hole": float("inf")}),
    )
    return table(
        "float8_current_quantize",
        _current_inputs,
        [
            (f"{kind} {name}", size, fp8, options)
            for kind, fp8 in _FORMATS.items()
            for name, size, options in settings
        ],
        outputs=("output", "factor"),
        rule=Rule.BITWISE,
    )


def _transposed_inputs(
    generator: Generator, size: tuple[int, ...], dtype: torch.dtype, current: bool
) -> Inputs:
    """With room for the transpose, and for what is measured."""
    one = torch.zeros(1, dtype=torch.float64)
    inputs: dict[str, Any] = {
        "input": _numbers(generator, *size, std=0.5),
        "dtype": dtype,
        "transposed": torch.zeros(size[-1:] + size[:-1], dtype=torch.float32).to(dtype),
    }
    own = {"power_of_2": False, "epsilon": 0.0}
    return inputs | (own if current else {"amax": one, "scale": one + 64.0})


def _transposed_cases() -> Iterator[Case]:
    """The transpose that is written beside the numbers."""
    for current in (False, True):
        yield from table(
            "float8_current_quantize" if current else "float8_quantize",
            _transposed_inputs,
            [
                (f"{kind} transpose of {' x '.join(map(str, size))}", size, fp8, current)
                for kind, fp8 in _FORMATS.items()
                for size in ((16, 16), (3, 5, 7), (128, 128), (130, 300), (256, 512))
            ],
            float32=() if current else ("scale", "amax"),
            changed=("transposed",) if current else ("transposed", "amax"),
            rule=Rule.BITWISE,
        )


def _block_inputs(
    generator: Generator, m: int, k: int, rows: int, power_of_2: bool, dtype: torch.dtype
) -> Inputs:
    return {
        "input": _numbers(generator, m, k, std=1.0),
        "dtype": dtype,
        "rows": rows,
        "power_of_2": power_of_2,
        "epsilon": 0.0 if power_of_2 else EPSILON,
    }


def _block_cases() -> Iterator[Case]:
    return table(
        "float8_block_quantize",
        _block_inputs,
        [
            (f"{kind} {rows} x 128 of {m} x {k}, {_scales(by_2)}", m, k, rows, by_2, fp8)
            for kind, fp8 in _FORMATS.items()
            for rows in (1, 128)
            for m, k in ((128, 128), (256, 384), (130, 200), (5, 16))
            for by_2 in (True, False)
        ],
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
    return _by_blocks(values, rows, dtype)


def _gemm_inputs(
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


def _gemm_cases() -> Iterator[Case]:
    kinds: tuple[tuple[str, tuple[int | None, int | None]], ...] = (
        ("one factor each", (None, None)),
        ("1 x 128 and 128 x 128", (1, 128)),
        ("1 x 128 both", (1, 1)),
        ("128 x 128 and 1 x 128", (128, 1)),
    )
    sizes = ((64, 48, 96), (256, 128, 512), (136, 272, 336))
    # Not float32: tensor cores sum FP8 GEMMs in fewer bits than it has.
    for dtype in DTYPES[1:]:
        yield from table(
            "scaled_matmul",
            _gemm_inputs,
            [
                (
                    f"{kind}, m={m} n={n} k={k}{', e5m2, bias' * gradient}",
                    *((m, n, k), rows, gradient, gradient, dtype),
                )
                for kind, rows in kinds
                for m, n, k in sizes
                for gradient in (False, True)
            ],
            dtypes=[dtype],
            float32=("a_scale_inv", "b_scale_inv"),
        )
