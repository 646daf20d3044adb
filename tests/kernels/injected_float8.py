"""Kernels of the FP8 contracts with one error each."""

from __future__ import annotations

from typing import Any, Final

import torch

from accel_bridge.kernels import CONTRACTS

from .injected import Function, with_changes, with_result

_QUANTIZE: Final = "float8_quantize"
_CURRENT: Final = "float8_current_quantize"
_BLOCKS: Final = "float8_block_quantize"
_GEMM: Final = "scaled_matmul"


def _truncated(**options: Any) -> torch.Tensor:
    """Rounds towards zero."""
    numbers: torch.Tensor = CONTRACTS[_QUANTIZE].reference(**options)
    exact = options["input"].float() * options["scale"]
    raw = numbers.view(torch.uint8)
    too_large = (numbers.float().abs() > exact.abs()) & exact.isfinite()
    return torch.where(too_large, raw - 1, raw).view(numbers.dtype)


def _unsaturated(**options: Any) -> torch.Tensor:
    """Numbers beyond the largest become infinite or NaN."""
    return (options["input"].float() * options["scale"]).to(options["dtype"])


def _gemm_in_low_precision(**options: Any) -> torch.Tensor:
    """Multiplies with the scale in the input's dtype."""
    scaled = options["input"] * options["scale"].to(options["input"].dtype)
    largest = torch.finfo(options["dtype"]).max
    return scaled.float().clamp(-largest, largest).to(options["dtype"])


def _factors_dropped(name: str) -> Any:
    return lambda options: torch.ones_like(options[name])


INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    _QUANTIZE: {
        "rounds towards zero": (_truncated, "output", "e4m3"),
        "no saturation": (_unsaturated, "output", "beyond"),
        "GEMM in the input's dtype": (_gemm_in_low_precision, "output", "odd"),
        "the other format": (
            with_result(_QUANTIZE, lambda result, _: result.float().to(torch.float8_e5m2)),
            "output",
            "e4m3",
        ),
    },
    _CURRENT: {
        "factor is the scale": (
            with_result(_CURRENT, lambda result, _: (result[0], result[1].reciprocal())),
            "factor",
            "any scale",
        ),
        "any scale instead of powers of two": (
            with_changes(_CURRENT, power_of_2=lambda _: False),
            "factor",
            "powers of two",
        ),
        "epsilon ignored": (
            with_changes(_CURRENT, epsilon=lambda _: 0.0),
            "factor",
            "epsilon",
        ),
        "the largest of the first tile": (
            with_changes(_CURRENT, input=lambda o: o["input"].clamp(-1, 1)),
            "factor",
            "many tiles",
        ),
    },
    _BLOCKS: {
        "scale_inv are scales": (
            with_result(_BLOCKS, lambda result, _: (result[0], result[1].reciprocal())),
            "scale_inv",
            "1 x 128",
        ),
        "any scale instead of powers of two": (
            with_changes(_BLOCKS, power_of_2=lambda _: False),
            "scale_inv",
            "powers of two",
        ),
        "epsilon ignored": (
            with_changes(_BLOCKS, input=lambda o: o["input"] * 2, epsilon=lambda _: 0.0),
            "scale_inv",
            "any scale",
        ),
        "blocks of 1 x 128 everywhere": (
            with_changes(_BLOCKS, rows=lambda _: 1),
            "scale_inv",
            "128 x 128",
        ),
    },
    _GEMM: {
        "first scale_inv ignored": (
            with_changes(_GEMM, a_scale_inv=_factors_dropped("a_scale_inv")),
            "output",
            "one factor",
        ),
        "second scale_inv ignored": (
            with_changes(_GEMM, b_scale_inv=_factors_dropped("b_scale_inv")),
            "output",
            "1 x 128",
        ),
        "bias ignored": (with_changes(_GEMM, bias=lambda _: None), "output", "bias"),
        "summed in E5M2": (
            with_result(_GEMM, lambda result, _: result.to(torch.float8_e5m2).to(result.dtype)),
            "output",
            "one factor",
        ),
        "factors of the block before": (
            with_changes(_GEMM, a_scale_inv=lambda o: o["a_scale_inv"].roll(1, -1)),
            "output",
            "1 x 128 both, m=256",
        ),
    },
}
