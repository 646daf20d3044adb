"""Contracts ``swiglu``, ``geglu``, ``gated_activation`` and ``bias_gelu`` of an MLP.

Legend: ... any leading dimensions, f feed-forward size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final, Literal

import torch
from torch.nn import functional

from accel_bridge.kernels._contract import Contract
from accel_bridge.kernels.cases import DTYPES, Case, Generator, Inputs, normal

#: Rows and f of the parity cases.
_SIZES: Final = ((1, 8), (3, 37), (64, 256), (5, 4096))


def bias_gelu_reference(input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``gelu(input + bias)`` by the tanh approximation.

    :param input: [..., f], any float dtype.
    :param bias: [f], in the input's dtype.
    :returns: [..., f] in the input's dtype.
    """
    return functional.gelu(input + bias, approximate="tanh")


def _bias_gelu_inputs(generator: Generator, size: tuple[int, int], std: float) -> Inputs:
    return {
        "input": normal(generator, *size, std=std),
        "bias": normal(generator, size[-1]),
    }


def _bias_gelu_cases() -> Iterator[Case]:
    for dtype in DTYPES:
        for size in _SIZES:
            build = partial(_bias_gelu_inputs, size=size, std=1.0)
            name = f"rows={size[0]} f={size[1]}"
            yield Case("bias_gelu", name, dtype, build, ("input", "bias"))
        build = partial(_bias_gelu_inputs, size=(5, 33), std=40.0)
        yield Case("bias_gelu", "large values", dtype, build, ("input", "bias"))


BIAS_GELU = Contract(
    name="bias_gelu",
    reference=bias_gelu_reference,
    formula="gelu_tanh(x + bias)",
    source="Hendrycks and Gimpel 2016, arXiv:1606.08415; semantics of Megatron's bias_gelu_impl",
    cases=_bias_gelu_cases,
)


def swiglu_reference(input: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(a) * b`` where ``a, b`` are the halves of ``input + bias``.

    :param input: [..., 2 f], any float dtype; the first half is the gate.
    :param bias: [2 f] or None, in the input's dtype.
    :returns: [..., f] in the input's dtype.
    """
    gate, linear = (input if bias is None else input + bias).chunk(2, dim=-1)
    return functional.silu(gate) * linear


def geglu_reference(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    approximate: Literal["none", "tanh"] = "tanh",
) -> torch.Tensor:
    """``gelu(a) * b`` where ``a, b`` are the halves of ``input + bias``.

    :param input: [..., 2 f], any float dtype; the first half is the gate.
    :param bias: [2 f] or None, in the input's dtype.
    :param approximate: ``tanh`` (Megatron's fused GEGLU) or ``none`` (error function).
    :returns: [..., f] in the input's dtype.
    """
    gate, linear = (input if bias is None else input + bias).chunk(2, dim=-1)
    return functional.gelu(gate, approximate=approximate) * linear


def _gated_inputs(
    generator: Generator, size: tuple[int, int], std: float, bias: bool, options: Inputs
) -> Inputs:
    rows, half = size
    return {
        "input": normal(generator, rows, 2 * half, std=std),
        "bias": normal(generator, 2 * half) if bias else None,
        **options,
    }


def _gated_cases(contract: str, prefix: str, options: Inputs) -> Iterator[Case]:
    for dtype in DTYPES:
        for rows, half in _SIZES:
            for bias in (False, True):
                name = f"{prefix}rows={rows} f={half}{', bias' if bias else ''}"
                build = partial(
                    _gated_inputs, size=(rows, half), std=1.0, bias=bias, options=options
                )
                gradients = ("input", "bias") if bias else ("input",)
                yield Case(contract, name, dtype, build, gradients)
        build = partial(_gated_inputs, size=(5, 33), std=40.0, bias=False, options=options)
        yield Case(contract, f"{prefix}large values", dtype, build, ("input",))


def _geglu_cases() -> Iterator[Case]:
    yield from _gated_cases("geglu", "tanh ", {})
    yield from _gated_cases("geglu", "erf ", {"approximate": "none"})


SWIGLU = Contract(
    name="swiglu",
    reference=swiglu_reference,
    formula="silu(a) * b, [a, b] = x + bias",
    source="Shazeer 2020, arXiv:2002.05202; semantics of Megatron's bias_swiglu",
    cases=partial(_gated_cases, "swiglu", "", {}),
)
GEGLU = Contract(
    name="geglu",
    reference=geglu_reference,
    formula="gelu(a) * b, [a, b] = x + bias",
    source="Shazeer 2020, arXiv:2002.05202; semantics of Megatron's bias_geglu",
    cases=_geglu_cases,
)


def clamped(input: torch.Tensor, low: float | None, high: float) -> torch.Tensor:
    """``input`` within its bounds, with a gradient of 1 at a bound, too.

    So Megatron's and Transformer Engine's formulas have it; PyTorch 2.15's clamp has 0 there.
    """
    within = input.detach().clamp(low, high)
    return torch.where(within == input, input, within)


def gated_activation_reference(
    input: torch.Tensor,
    bias: torch.Tensor | None = None,
    weights: torch.Tensor | None = None,
    *,
    activation: Literal["silu", "quick_gelu"] = "silu",
    clamp: float | None = None,
    offset: float = 0.0,
) -> torch.Tensor:
    """``activation(a) * (b + offset) * weights`` where ``a, b`` are the halves of ``input + bias``.

    :param input: [..., 2 f], any float dtype; the first half is the gate.
    :param bias: [2 f] or None, in the input's dtype.
    :param weights: [..., 1] or None, any float dtype: probabilities of experts.
    :param activation: ``quick_gelu`` is ``a * sigmoid(1.702 a)``.
    :param clamp: bound of ``a`` from above and of ``b`` from both sides, or None.
    :returns: [..., f] in the input's dtype.
    """
    gate, linear = (input if bias is None else input + bias).chunk(2, dim=-1)
    if clamp is not None:
        gate, linear = clamped(gate, None, clamp), clamped(linear, -clamp, clamp)
    active = functional.silu(gate) if activation == "silu" else gate * torch.sigmoid(1.702 * gate)
    output = active * (linear + offset)
    return output if weights is None else (output * weights).to(input.dtype)


def _gated_activation_inputs(
    generator: Generator, size: tuple[int, int], std: float, weighted: bool, options: Inputs
) -> Inputs:
    inputs = _gated_inputs(generator, size, std, not weighted, options)
    weights = torch.rand(size[0], 1, generator=generator) if weighted else None
    return {**inputs, "weights": weights}


def _gated_activation_cases() -> Iterator[Case]:
    # A sum with a bias, rounded, may be on the other side of the clamp's edge: not both.
    variants: tuple[tuple[str, Inputs], ...] = (
        ("bias", {"activation": "silu"}),
        ("weights", {"activation": "silu"}),
        ("bias", {"activation": "quick_gelu", "offset": 1.0}),
        ("weights", {"activation": "quick_gelu", "clamp": 1.5, "offset": 1.0}),
    )
    for dtype in DTYPES:
        for other, options in variants:
            for rows, half in (*_SIZES, (3, 2500)):
                build = partial(
                    _gated_activation_inputs,
                    size=(rows, half),
                    std=1.0,
                    weighted=other == "weights",
                    options=options,
                )
                name = f"{options['activation']} rows={rows} f={half}, {other}"
                yield Case("gated_activation", name, dtype, build, ("input", other))


GATED_ACTIVATION = Contract(
    name="gated_activation",
    reference=gated_activation_reference,
    formula="activation(a) * (b + offset) * weights, [a, b] = x + bias",
    source="semantics of Megatron's weighted_bias_swiglu_impl, weighted_bias_quick_geglu_impl, MLP",
    cases=_gated_activation_cases,
)
