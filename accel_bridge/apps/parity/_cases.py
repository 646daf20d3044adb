"""The table of cases: every contract with its usual and its edge shapes, in every dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch

from accel_bridge.apps.parity._attention_cases import (
    attention_cases,
    max_logit_cases,
    sequence_cases,
)
from accel_bridge.apps.parity._case import table
from accel_bridge.apps.parity._float8_cases import float8_cases
from accel_bridge.kernels import CONTRACTS
from accel_bridge.kernels.bias_dropout_add import bias_dropout_add_reference
from accel_bridge.kernels.cases import DTYPES, Case, Generator, Inputs, Rule, normal
from accel_bridge.kernels.token_permute import rows_of_map


def moe_cases() -> Iterator[Case]:
    """Every case of the experts' GEMMs and of the permutations."""
    yield from _grouped_matmul_cases()
    yield from _gradient_cases()
    yield from _permute_cases()
    yield from _unpermute_cases()


def _grouped_inputs(generator: Generator, counts: tuple[int, ...], k: int, m: int) -> Inputs:
    return {
        "input": normal(generator, sum(counts), k),
        "weight": normal(generator, len(counts), k, m, std=k**-0.5),
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
    return table("grouped_matmul", _grouped_inputs, settings, gradients=("input", "weight"))


def _gradient_inputs(
    generator: Generator, counts: tuple[int, ...], k: int, m: int, accumulate: bool
) -> Inputs:
    # The last expert's sums come first, with a gap behind each, as in a buffer of gradients.
    step = m * k + 4
    places = [step * place for place in reversed(range(len(counts)))]
    return {
        "input": normal(generator, sum(counts), k),
        "grad_output": normal(generator, sum(counts), m),
        "splits": counts,
        "main_grad": normal(generator, step * len(counts)),
        "accumulate": accumulate,
        "places": places,
    }


def _gradient_cases() -> Iterator[Case]:
    settings = (
        ("even", (16, 16, 16, 16), 64, 48, True),
        ("odd sizes", (1, 7, 130, 3), 36, 20, True),
        ("idle experts", (0, 12, 0, 5, 0), 32, 24, True),
        ("idle experts, replaced", (0, 12, 0, 5, 0), 32, 24, False),
        ("wide", (70, 20), 260, 136, True),
    )
    grad: dict[str, Any] = {"float32": ("main_grad",), "changed": ("main_grad",)}
    return table("grouped_weight_gradient", _gradient_inputs, settings, **grad)


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
    options: dict[str, Any] = {"outputs": ("permuted", "weights", "rows"), "float32": ("probs",)}
    settings = [
        (f"t={t} e={e} k={k}{', padded' * padded}", t, e, k, padded)
        for t, e, k in _ROUTINGS
        for padded in (False, True)
    ]
    yield from table("token_permute", _permute_inputs, settings, rule=Rule.BITWISE, **options)
    settings = [(f"gradients{', padded' * padded}", 37, 8, 2, padded) for padded in (False, True)]
    gradients = ("tokens", "probs")
    yield from table("token_permute", _permute_inputs, settings, gradients=gradients, **options)


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
    for weights, padded in ((False, False), (True, False), (True, True)):
        words = ", weights" * weights + ", padded" * padded
        yield from table(
            "token_unpermute",
            _unpermute_inputs,
            [(f"t={t} e={e} k={k}{words}", t, e, k, weights, padded) for t, e, k in _ROUTINGS],
            gradients=("permuted", "weights") if weights else ("permuted",),
            float32=("weights",),
        )


#: Rows x hidden sizes of the element-wise and row-wise contracts: one row, odd sizes, a wide one.
_ROWS: Final = ((1, 8), (3, 37), (64, 256), (5, 4096))


def all_cases() -> tuple[Case, ...]:
    tables: tuple[Callable[[], Iterator[Case]], ...] = (
        attention_cases,
        max_logit_cases,
        _norm_cases,
        _rotary_cases,
        _bias_dropout_add_cases,
        _softmax_cases,
        _cross_entropy_cases,
        _linear_cross_entropy_cases,
        _adamw_cases,
        _weight_gradient_cases,
        _embedding_gradient_cases,
        moe_cases,
        float8_cases,
        sequence_cases,
    )
    beside = [contract.cases for contract in CONTRACTS.values() if contract.cases]
    return tuple(case for table in (*tables, *beside) for case in table())


def _norm_inputs(
    generator: Generator, size: tuple[int, int], std: float, center: float, bias: bool | None
) -> dict[str, Any]:
    """:param bias: None for rms_norm, which has none."""
    hidden = size[-1]
    inputs: dict[str, Any] = {
        "input": normal(generator, *size, std=std),
        "weight": center + normal(generator, hidden, std=0.1),
        "eps": 1e-5,
        "zero_centered_gamma": center == 0.0,
    }
    if bias is not None:
        inputs["bias"] = normal(generator, hidden, std=0.1) if bias else None
    return inputs


def _norm_pass_inputs(
    generator: Generator,
    size: tuple[int, int],
    std: float,
    center: float,
    bias: bool | None,
    backward: bool,
) -> dict[str, Any]:
    """One pass of a norm, with the statistics that the other one needs."""
    inputs = _norm_inputs(generator, size, std, center, bias)
    centered = bias is not None
    if not backward:
        return {"bias": None, **inputs, "centered": centered}
    x, epsilon = inputs["input"], inputs.pop("eps")
    inputs.pop("bias", None)
    mean = x.mean(-1) if centered else None
    rest = x if mean is None else x - mean[:, None]
    return {
        **inputs,
        "grad_output": normal(generator, *size),
        "mean": mean,
        "rsigma": torch.rsqrt(rest.square().mean(-1) + epsilon),
    }


def _norm_cases() -> Iterator[Case]:
    settings: list[tuple[str, tuple[int, int], float, float]] = [
        (f"rows={rows} h={hidden}", (rows, hidden), 1.0, 1.0) for rows, hidden in _ROWS
    ]
    settings += [
        ("zero-centred gamma", (7, 96), 1.0, 0.0),
        # eps is most of the denominator, and all of it for rows of zeros.
        ("small values", (7, 96), 1e-3, 1.0),
        ("zeros", (2, 32), 0.0, 1.0),
        # Their squares are beyond float16.
        ("large values", (7, 96), 3e3, 1.0),
    ]
    for contract, bias in (("rms_norm", None), ("layer_norm", True), ("layer_norm", False)):
        suffix = ", no bias" if bias is False else ""
        rows = [(name + suffix, *rest, bias) for name, *rest in settings]
        gradients = ("input", "weight", *(("bias",) if bias else ()))
        yield from table(contract, _norm_inputs, rows, gradients=gradients)
        kind = "RMSNorm " if bias is None else "LayerNorm "
        for backward in (False, True):
            if backward and bias is False:
                continue  # the same as with a bias
            outputs: tuple[str, ...] = ("output", "mean", "rsigma")
            if backward:
                outputs = ("grad input", "grad weight", "grad bias")
            if bias is None:
                outputs = tuple(one for one in outputs if one not in ("mean", "grad bias"))
            yield from table(
                "norm_backward" if backward else "norm_forward",
                _norm_pass_inputs,
                [(f"{kind}{name}", *rest, backward) for name, *rest in rows],
                outputs=outputs,
                float32=("mean", "rsigma"),
            )


def _rotary_inputs(
    generator: Generator, length: int, size: int, rotated: int, interleaved: bool
) -> Inputs:
    angles = torch.arange(length, dtype=torch.float64)[:, None] * (
        10000.0 ** (-torch.arange(rotated // 2, dtype=torch.float64) / (rotated // 2))
    )
    both = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    both = both[:, None, None, :]
    return {
        "input": normal(generator, length, 2, 3, size),
        "cos": both.cos(),
        "sin": both.sin(),
        "interleaved": interleaved,
    }


def _rotary_cases() -> Iterator[Case]:
    settings = [
        (f"{style} s={length} d={size} r={rotated}", length, size, rotated, style == "interleaved")
        for length, size, rotated in ((1, 8, 8), (33, 64, 64), (33, 64, 32), (130, 128, 128))
        for style in ("half", "interleaved")
    ]
    options: dict[str, Any] = {"gradients": ("input",), "float32": ("cos", "sin")}
    return table("rotary", _rotary_inputs, settings, **options)


def _bias_dropout_add_inputs(
    generator: Generator,
    size: tuple[int, int],
    bias: bool,
    dropout: float,
    training: bool,
) -> Inputs:
    return {
        "input": normal(generator, *size),
        "bias": normal(generator, size[-1]) if bias else None,
        "residual": normal(generator, *size),
        "dropout": dropout,
        "training": training,
    }


def _dropout_inputs(generator: Generator, size: tuple[int, int], dropout: float) -> Inputs:
    """Input and bias positive, residual zero: an element of the output is zero where dropped."""
    return {
        "input": normal(generator, *size).abs() + 0.5,
        "bias": normal(generator, size[-1]).abs(),
        "residual": torch.zeros(size, dtype=torch.float64),
        "dropout": dropout,
        "training": True,
    }


def _kept_bias_dropout_add(inputs: Inputs, kept: torch.Tensor) -> torch.Tensor:
    """Under a given dropout mask; the case has a residual of zeros."""
    residual: torch.Tensor = inputs["residual"]
    nothing = torch.zeros_like(residual)
    whole = bias_dropout_add_reference(**{**inputs, "residual": nothing, "dropout": 0.0})
    share: float = 1.0 - inputs["dropout"]
    return residual + whole * kept / share


def _bias_dropout_add_cases() -> Iterator[Case]:
    cases = partial(table, "bias_dropout_add", _bias_dropout_add_inputs)
    sizes = [(f"rows={rows} h={hidden}", (rows, hidden)) for rows, hidden in _ROWS]
    plain = [(name, size, False, 0.0, True) for name, size in sizes]
    yield from cases(plain, gradients=("input", "residual"))
    all_three = ("input", "bias", "residual")
    biased = [(f"{name}, bias", size, True, 0.0, True) for name, size in sizes]
    evaluated = ("not training, dropout 0.2", (64, 256), True, 0.2, False)
    yield from cases([*biased, evaluated], gradients=all_three)
    mixed = ("float32 residual", (64, 256), True, 0.0, True)
    yield from cases([mixed], gradients=all_three, float32=("residual",))
    yield from table(
        "bias_dropout_add",
        _dropout_inputs,
        [("dropout 0.2", (64, 256), 0.2)],
        gradients=all_three,
        expected=_kept_bias_dropout_add,
    )


def _softmax_inputs(
    generator: Generator, size: tuple[int, int, int, int], std: float, masked: str, causal: bool
) -> Inputs:
    b, n, sq, sk = size
    mask = None
    if masked:
        mask = torch.rand((b, 1, sq, sk), generator=generator) < 0.4
        mask[..., 0] = False
        mask[0, 0, sq // 2] |= masked == "hidden row"
    return {
        "scores": normal(generator, b, n, sq, sk, std=std),
        "mask": mask,
        "scale": 0.3,
        "causal": causal,
    }


def _softmax_cases() -> Iterator[Case]:
    settings = (
        ("plain", (2, 3, 37, 41), 1.0, "", False),
        ("causal", (2, 4, 64, 64), 1.0, "", True),
        ("causal, sq < sk", (1, 2, 5, 12), 1.0, "", True),
        ("length 1", (1, 2, 1, 1), 1.0, "", True),
        ("masked", (2, 3, 33, 65), 1.0, "random", False),
        ("causal, masked", (2, 3, 33, 33), 1.0, "random", True),
        ("hidden row", (2, 3, 33, 65), 1.0, "hidden row", False),
        ("large values", (2, 3, 33, 65), 300.0, "", False),
        # Some kernels take whole tiles only.
        ("plain, tiles of 32", (2, 3, 32, 96), 1.0, "", False),
        ("masked, tiles of 32", (2, 3, 64, 96), 1.0, "random", False),
        ("hidden row, tiles of 32", (2, 3, 64, 32), 1.0, "hidden row", True),
        ("large values, tiles of 32", (2, 3, 64, 64), 300.0, "", False),
    )
    return table("scaled_masked_softmax", _softmax_inputs, settings, gradients=("scores",))


def _cross_entropy_inputs(
    generator: Generator, size: tuple[int, int, int], std: float, smoothing: float
) -> Inputs:
    return {
        "logits": normal(generator, *size, std=std),
        "target": torch.randint(size[-1], size[:-1], generator=generator),
        "label_smoothing": smoothing,
    }


def _cross_entropy_cases() -> Iterator[Case]:
    settings = (
        ("v=1000", (17, 2, 1000), 1.0, 0.0),
        ("v=50257", (4, 1, 50257), 1.0, 0.0),
        ("one token, v=2", (1, 1, 2), 1.0, 0.0),
        ("smoothing 0.1", (17, 2, 334), 1.0, 0.1),
        ("large values", (17, 2, 334), 300.0, 0.0),
    )
    return table("cross_entropy", _cross_entropy_inputs, settings, gradients=("logits",))


def _linear_cross_entropy_inputs(
    generator: Generator, size: tuple[int, int, int, int], std: float, scale: float
) -> Inputs:
    *tokens, hidden, vocabulary = size
    return {
        "input": normal(generator, *tokens, hidden),
        "weight": normal(generator, vocabulary, hidden, std=std / hidden**0.5),
        "target": torch.randint(vocabulary, tokens, generator=generator),
        "scale": scale,
    }


def _linear_cross_entropy_cases() -> Iterator[Case]:
    settings = (
        ("v=1000", (17, 2, 64, 1000), 1.0, 1.0),
        ("one token, v=2", (1, 1, 8, 2), 1.0, 1.0),
        ("scaled logits", (17, 2, 64, 334), 1.0, 0.25),
        ("large values", (17, 2, 64, 334), 300.0, 1.0),
    )
    gradients = ("input", "weight")
    build = _linear_cross_entropy_inputs
    return table("linear_cross_entropy", build, settings, gradients=gradients)


def _adamw_inputs(
    generator: Generator,
    step: int,
    std: float,
    weight_decay: float,
    scale: float | None = None,
    multiple: int = 1,
    copied: bool = False,
) -> Inputs:
    """:param multiple: that every tensor's number of elements is one of."""
    sizes = ((multiple,), (37 * multiple,), (64, 33 * multiple), (3, 5, 7 * multiple))
    draw = [[normal(generator, *size) for size in sizes] for _ in range(4)]
    first = step == 1  # the moments start at zero
    return {
        "parameters": draw[0],
        "gradients": [tensor * std for tensor in draw[1]],
        "first_moments": [tensor * (0.0 if first else std) for tensor in draw[2]],
        "second_moments": [(tensor * (0.0 if first else std)) ** 2 for tensor in draw[3]],
        "step": step,
        "lr": 1e-2,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": weight_decay,
        "scale": None if scale is None else torch.tensor([scale]),
        "copies": [torch.zeros(size) for size in sizes] if copied else None,
    }


def _adamw_cases() -> Iterator[Case]:
    settings = (
        ("first step", 1, 1.0, 0.1),
        ("step 10", 10, 1.0, 0.1),
        ("step 100000, no weight decay", 100000, 1.0, 0.0),
        # eps is the denominator here.
        ("tiny gradients", 5, 1e-9, 0.1),
        ("scaled gradients", 10, 1.0, 0.1, 0.37),
        ("sizes that are multiples of 4", 10, 1.0, 0.1, None, 4),
    )
    changed = ("parameters", "first_moments", "second_moments")
    yield from table("adamw", _adamw_inputs, settings, dtypes=[torch.float32], changed=changed)
    yield from table(
        "adamw",
        partial(_adamw_inputs, copied=True),
        [(f"{name}, copies", *arguments) for name, *arguments in settings[-2:]],
        dtypes=DTYPES[1:],
        float32=(*changed, "gradients", "scale"),
        changed=(*changed, "copies"),
    )


def _weight_gradient_inputs(
    generator: Generator, size: tuple[int, ...], k: int, m: int, accumulate: bool = True
) -> Inputs:
    return {
        "accumulate": accumulate,
        "input": normal(generator, *size, k),
        "grad_output": normal(generator, *size, m),
        "main_grad": normal(generator, m, k),
    }


def _weight_gradient_cases() -> Iterator[Case]:
    cases = partial(table, "weight_gradient", _weight_gradient_inputs, changed=("main_grad",))
    sizes = (((1,), 8, 8), ((37, 3), 33, 65), ((256, 2), 128, 96))
    settings = [
        (f"tokens={'x'.join(map(str, size))} k={k} m={m}, float32 main_grad", size, k, m)
        for size, k, m in sizes
    ]
    replaces = ("replaces main_grad", (37, 3), 33, 65, False)
    yield from cases([*settings, replaces], float32=("main_grad",))
    yield from cases([("main_grad in the input's dtype", (37, 3), 33, 65)], dtypes=DTYPES[1:])


def _embedding_gradient_inputs(
    generator: Generator, size: tuple[int, ...], rows: int, hidden: int
) -> Inputs:
    """Indices from two rows below the table to two above it; tokens share rows."""
    return {
        "indices": torch.randint(-2, rows + 2, size, generator=generator),
        "grad_output": normal(generator, *size, hidden),
        "main_grad": normal(generator, rows, hidden),
    }


def _embedding_gradient_cases() -> Iterator[Case]:
    cases = partial(table, "embedding_gradient", _embedding_gradient_inputs)
    settings = [
        (f"tokens={'x'.join(map(str, size))} v={rows} h={hidden}, float32 main_grad", *sizes)
        for sizes in (((1,), 3, 8), ((37, 3), 13, 33), ((64, 2), 100, 1030))
        for size, rows, hidden in [sizes]
    ]
    yield from cases(settings, float32=("main_grad",), changed=("main_grad",))
    # A few tokens make up most of a text: here one row gets many.
    crowded = ("tokens=600 v=1 h=16, float32 main_grad", (600,), 1, 16)
    yield from cases([crowded], dtypes=[torch.float32], changed=("main_grad",))
