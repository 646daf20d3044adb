"""Kernels of FP8 for several experts with one error each."""

from __future__ import annotations

from typing import Any, Final

import torch

from accel_bridge.kernels import CONTRACTS

from .injected import Function, with_changes, with_result

_QUANTIZE: Final = "grouped_float8_quantize"
_TURN: Final = "grouped_float8_block_transpose"
_GEMM: Final = "grouped_scaled_matmul"
_GRADIENT: Final = "grouped_scaled_weight_gradient"
_E4M3: Final = torch.float8_e4m3fn


def _one_scale(**options: Any) -> Any:
    """The scale of all rows for every expert."""
    if options["scale"] is not None:
        return CONTRACTS[_QUANTIZE].reference(**options)
    whole = {**options, "splits": (sum(options["splits"]),), "amax": None, "transposed": None}
    numbers, scale_inv = CONTRACTS[_QUANTIZE].reference(**whole)
    return numbers, scale_inv.expand(len(options["splits"])).contiguous()


def _turned_as_one(**options: Any) -> Any:
    """One transpose of all rows instead of one for each expert."""
    made = CONTRACTS[_QUANTIZE].reference(**options)
    numbers, transposed = made[0].view(torch.uint8), options["transposed"].view(torch.uint8)
    transposed.copy_(numbers.t().reshape(-1))
    return made


def _idle_forgotten(**options: Any) -> Any:
    """Experts without rows lose their largest magnitude."""
    made = CONTRACTS[_QUANTIZE].reference(**options)
    if options.get("amax") is not None:
        for index, rows in enumerate(options["splits"]):
            options["amax"][index] *= float(rows > 0)
    return made


def _last_rows_left_out(**options: Any) -> None:
    """The last rows of each expert are left out."""
    m = options["sizes"][1]
    gradient = options["grad_output"].clone()
    first = 0
    for rows in options["splits"]:
        if rows:
            gradient.view(torch.uint8)[first * m : (first + rows) * m].view(m, rows)[:, -1] = 0
        first += rows
    CONTRACTS[_GRADIENT].reference(**{**options, "grad_output": gradient})


#: As in injected.
INJECTED: Final[dict[str, dict[str, tuple[Function, str, str]]]] = {
    _QUANTIZE: {
        "one scale for all experts": (_one_scale, "scale_inv", "own scales"),
        "one transpose for all experts": (_turned_as_one, "transposed", "transposes"),
        "idle experts forgotten": (_idle_forgotten, "amax", "idle experts"),
        "epsilon ignored": (
            with_changes(_QUANTIZE, epsilon=lambda _: 0.0),
            "scale_inv",
            "epsilon",
        ),
        "given scales ignored": (
            with_changes(_QUANTIZE, scale=lambda _: None),
            "scale_inv",
            "given scales",
        ),
    },
    _TURN: {
        "blocks across experts": (
            with_changes(_TURN, splits=lambda o: (sum(o["splits"]),)),
            "output",
            "many tiles",
        ),
        "scale_inv are scales": (
            with_result(_TURN, lambda result, _: (result[0], result[1].reciprocal())),
            "scale_inv",
            "powers of two",
        ),
        "any scale instead of powers of two": (
            with_changes(_TURN, power_of_2=lambda _: False),
            "scale_inv",
            "powers of two",
        ),
    },
    _GEMM: {
        "the neighbour's weight": (
            with_changes(_GEMM, b=lambda o: o["b"].view(torch.uint8).roll(1, 0).view(_E4M3)),
            "output",
            "even",
        ),
        "the neighbour's factor": (
            with_changes(_GEMM, b_scale_inv=lambda o: o["b_scale_inv"].roll(1, 0)),
            "output",
            "a factor each",
        ),
        "factors of rows ignored": (
            with_changes(_GEMM, a_scale_inv=lambda o: torch.ones_like(o["a_scale_inv"])),
            "output",
            "blocks",
        ),
        "summed in E5M2": (
            with_result(_GEMM, lambda result, _: result.to(torch.float8_e5m2).to(result.dtype)),
            "output",
            "even",
        ),
    },
    _GRADIENT: {
        "the last rows left out": (_last_rows_left_out, "main_grad", "many tiles"),
        "sums overwritten": (
            lambda **o: (o["main_grad"].zero_(), CONTRACTS[_GRADIENT].reference(**o))[1],
            "main_grad",
            "even",
        ),
        "in the experts' order": (
            with_changes(_GRADIENT, places=lambda o: sorted(o["places"])),
            "main_grad",
            "even",
        ),
        "factors of the block before": (
            with_changes(_GRADIENT, input_scale_inv=lambda o: o["input_scale_inv"].roll(1, 0)),
            "main_grad",
            "blocks",
        ),
    },
}
