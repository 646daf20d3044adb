"""The cases of mixture-of-experts kernels: grouped products, and tokens to experts and back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import torch

from accel_bridge.apps.parity._case import DTYPES, Case, Generator, Inputs, normal
from accel_bridge.apps.parity._tolerances import Rule
from accel_bridge.kernels.token_permute import rows_of_map


def moe_cases() -> Iterator[Case]:
    """Every case of the experts' products and of the permutations."""
    yield from _grouped_matmul_cases()
    yield from _gradient_cases()
    yield from _permute_cases()
    yield from _unpermute_cases()


def _grouped_inputs(generator: Generator, counts: tuple[int, ...], k: int, m: int) -> Inputs:
    return {
        "input": normal(generator, sum(counts), k),
        "weight": normal(generator, len(counts), k, m, spread=k**-0.5),
        "tokens_per_expert": torch.tensor(counts),
    }


def _grouped_matmul_cases() -> Iterator[Case]:
    settings = (
        ("even", (16, 16, 16, 16), 64, 48),
        ("odd sizes", (1, 7, 30, 3), 33, 17),
        ("idle experts", (0, 12, 0, 5, 0), 32, 24),
        ("one expert", (40,), 64, 32),
        ("no tokens", (0, 0), 16, 8),
    )
    for dtype in DTYPES:
        for name, counts, k, m in settings:
            build = partial(_grouped_inputs, counts=counts, k=k, m=m)
            yield Case("grouped_matmul", name, dtype, build, ("input", "weight"))


def _gradient_inputs(generator: Generator, counts: tuple[int, ...], k: int, m: int) -> Inputs:
    # The last expert's sums come first, with a gap behind each, as in a buffer of gradients.
    step = m * k + 4
    places = [step * place for place in reversed(range(len(counts)))]
    return {
        "input": normal(generator, sum(counts), k),
        "grad_output": normal(generator, sum(counts), m),
        "splits": counts,
        "main_grad": normal(generator, step * len(counts)),
        "places": places,
    }


def _gradient_cases() -> Iterator[Case]:
    settings = (
        ("even", (16, 16, 16, 16), 64, 48),
        ("odd sizes", (1, 7, 130, 3), 36, 20),
        ("idle experts", (0, 12, 0, 5, 0), 32, 24),
        ("wide", (70, 20), 260, 136),
    )
    for dtype in DTYPES:
        for name, counts, k, m in settings:
            yield Case(
                "grouped_weight_gradient",
                name,
                dtype,
                partial(_gradient_inputs, counts=counts, k=k, m=m),
                float32=("main_grad",),
                changed=("main_grad",),
            )


def _routing(generator: Generator, tokens: int, experts: int, top: int) -> torch.Tensor:
    """Bool [tokens, experts] with ``top`` experts for every token."""
    chosen = torch.rand((tokens, experts), generator=generator).topk(top).indices
    return torch.zeros(tokens, experts, dtype=torch.bool).scatter(1, chosen, True)


_ROUTINGS: Final = ((1, 4, 1), (37, 8, 2), (64, 8, 8), (33, 16, 3), (300, 60, 4))
#: Rows to which each expert's copies are filled up.
_ALIGN: Final = 4


def _padding(routing: torch.Tensor) -> tuple[int, torch.Tensor]:
    """(rows, rows of padding before each expert's copies) if experts have multiples of rows."""
    counts = routing.sum(0)
    padded = -(-counts // _ALIGN) * _ALIGN
    missing = padded - counts
    return int(padded.sum()), missing.cumsum(0) - missing


def _permute_inputs(
    generator: Generator, tokens: int, experts: int, top: int, padded: bool = False
) -> Inputs:
    routing = _routing(generator, tokens, experts, top)
    rows, offsets = _padding(routing) if padded else (tokens * top, None)
    return {
        "tokens": normal(generator, tokens, 24),
        "routing_map": routing,
        "probs": normal(generator, tokens, experts).softmax(-1),
        "num_out_tokens": rows,
        "pad_offsets": offsets,
    }


def _permute_cases() -> Iterator[Case]:
    outputs = ("permuted", "weights", "rows")
    for dtype in DTYPES:
        for tokens, experts, top in _ROUTINGS:
            for padded in (False, True):
                build = partial(
                    _permute_inputs, tokens=tokens, experts=experts, top=top, padded=padded
                )
                yield Case(
                    "token_permute",
                    f"t={tokens} e={experts} k={top}{', padded' if padded else ''}",
                    dtype,
                    build,
                    outputs=outputs,
                    float32=("probs",),
                    rule=Rule.BITWISE,
                )
        for padded in (False, True):
            yield Case(
                "token_permute",
                f"gradients{', padded' if padded else ''}",
                dtype,
                partial(_permute_inputs, tokens=37, experts=8, top=2, padded=padded),
                gradients=("tokens", "probs"),
                outputs=outputs,
                float32=("probs",),
            )


def _unpermute_inputs(
    generator: Generator, tokens: int, experts: int, top: int, weights: bool, padded: bool
) -> Inputs:
    routing = _routing(generator, tokens, experts, top)
    copies, offsets = _padding(routing) if padded else (tokens * top, None)
    return {
        "permuted": normal(generator, copies, 24),
        "rows": rows_of_map(routing, copies, offsets),
        "weights": normal(generator, tokens, experts).sigmoid() if weights else None,
        "complete": not padded,
    }


def _unpermute_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for tokens, experts, top in _ROUTINGS:
            for weights, padded in ((False, False), (True, False), (True, True)):
                words = (", weights" if weights else "") + (", padded" if padded else "")
                yield Case(
                    "token_unpermute",
                    f"t={tokens} e={experts} k={top}{words}",
                    dtype,
                    partial(
                        _unpermute_inputs,
                        tokens=tokens,
                        experts=experts,
                        top=top,
                        weights=weights,
                        padded=padded,
                    ),
                    gradients=("permuted", "weights") if weights else ("permuted",),
                    float32=("weights",),
                )
