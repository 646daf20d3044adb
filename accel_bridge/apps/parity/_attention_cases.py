"""The cases of attention, and of what else runs along a sequence.

Attention: layout x mask x shape x dtype, and every option once; then convolution, state-space scan
and gated delta rule.

Legend: b batch, n query heads, g key/value heads, d head size, dv of values, sq, sk lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.apps.parity._case import as_arguments, table
from accel_bridge.kernels import LAYOUTS, AttentionMask, Layout
from accel_bridge.kernels.attention import attention_reference
from accel_bridge.kernels.cases import Case, Generator, Inputs, normal

_LOW: Final = (torch.float16, torch.bfloat16)
_DTYPES: Final = (torch.float32, *_LOW)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one call; see the legend."""

    b: int
    n: int
    g: int
    d: int
    sq: int
    sk: int
    dv: int | None = None

    def __str__(self) -> str:
        lengths = f"s={self.sq}" if self.sq == self.sk else f"sq={self.sq} sk={self.sk}"
        value = "" if self.dv is None else f" dv={self.dv}"
        return f"b={self.b} n={self.n} g={self.g} d={self.d}{value} {lengths}"


#: A mask for given sizes; random ones draw from the generator.
MakeMask = Callable[[torch.Generator, Shape], AttentionMask]


def _padding(generator: torch.Generator, shape: Shape) -> AttentionMask:
    """The second half of the last batch row's keys is padding."""
    masked = torch.zeros(shape.b, 1, 1, shape.sk, dtype=torch.bool)
    masked[-1, ..., shape.sk // 2 :] = True
    return AttentionMask(masked=masked)


def _random_masked(generator: torch.Generator, shape: Shape) -> AttentionMask:
    """A different random mask for every head; key 0 stays visible."""
    size = (shape.b, shape.n, shape.sq, shape.sk)
    masked = torch.rand(size, generator=generator) < 0.4
    masked[..., 0] = False
    return AttentionMask(masked=masked)


def _hidden_row(generator: torch.Generator, shape: Shape) -> AttentionMask:
    """Causal, and one query sees nothing at all."""
    masked = torch.zeros(shape.b, 1, shape.sq, shape.sk, dtype=torch.bool)
    masked[0, 0, shape.sq // 2] = True
    return AttentionMask(causal=True, masked=masked)


def _documents(generator: torch.Generator, shape: Shape) -> AttentionMask:
    """Three sequences in each row."""
    number = torch.arange(shape.sk).mul(3).div(shape.sk, rounding_mode="floor")
    return AttentionMask.from_documents(number.expand(shape.b, -1), causal=True)


def _fixed(mask: AttentionMask) -> MakeMask:
    return lambda generator, shape: mask


def _legacy(pre: int, after: int) -> AttentionMask:
    """The mask of the 2023 Ascend adaptor: a band from the top left, ANDed with causality."""
    return AttentionMask(causal=True, window=(pre, after), alignment="top_left")


#: Masks by position alone, which packed sequences (TND) can have too.
_POSITIONAL: Final[dict[str, MakeMask]] = {
    "full": _fixed(AttentionMask()),
    "causal": _fixed(AttentionMask(causal=True)),
    "causal, window 8,0": _fixed(AttentionMask(causal=True, window=(8, 0))),
    "window 5,3": _fixed(AttentionMask(window=(5, 3))),
    "window unlimited,2": _fixed(AttentionMask(window=(None, 2))),
    "legacy 65536,65536": _fixed(_legacy(65536, 65536)),
    "legacy 8,0": _fixed(_legacy(8, 0)),
}
_EXPLICIT: Final[dict[str, MakeMask]] = {
    "padding": _padding,
    "random": _random_masked,
    "causal, a hidden row": _hidden_row,
    "sequences": _documents,
}
#: Head counts and sizes that are odd, for the full product of layouts and masks.
_USUAL: Final = Shape(b=2, n=6, g=2, d=40, sq=37, sk=37)
_SHAPES: Final = (
    Shape(b=2, n=4, g=4, d=64, sq=64, sk=64),
    Shape(b=1, n=8, g=1, d=128, sq=65, sk=65),
    Shape(b=1, n=2, g=2, d=32, sq=1, sk=1),
    Shape(b=1, n=2, g=1, d=256, sq=130, sk=130),
    Shape(b=3, n=1, g=1, d=8, sq=2, sk=2),
    # Beyond every kernel's tile, and one more.
    Shape(b=1, n=2, g=1, d=64, sq=1025, sk=1025),
)
#: More keys than queries and the reverse: alignment matters, and rows may see nothing.
_CROSS: Final = (
    Shape(b=2, n=4, g=2, d=32, sq=17, sk=50),
    Shape(b=2, n=4, g=2, d=32, sq=50, sk=17),
    Shape(b=1, n=2, g=2, d=64, sq=1, sk=33),
)
#: Windows of long, even sequences, for which some backends have a kernel of their own.
_LONG: Final = (
    (Shape(b=1, n=4, g=2, d=64, sq=1024, sk=1024), AttentionMask(causal=True, window=(200, 0))),
    (Shape(b=1, n=2, g=2, d=128, sq=1024, sk=1024), AttentionMask(window=(130, 70))),
    (Shape(b=2, n=2, g=1, d=128, sq=1024, sk=1024), AttentionMask(causal=True, window=(127, 0))),
)
#: Cases that expose a backward pass which assumes the gradient's strides.
_SLICED: Final[tuple[tuple[Layout, Shape], ...]] = (
    ("SBHD", _SHAPES[0]),
    ("BNSD", _SHAPES[1]),
    ("SBHD", Shape(b=2, n=4, g=4, d=192, sq=130, sk=130, dv=128)),
)
#: Values of another head size, as in latent attention, and sizes that kernels fill up with zeros.
_WIDTHS: Final = (
    Shape(b=2, n=4, g=4, d=192, sq=130, sk=130, dv=128),
    Shape(b=1, n=4, g=2, d=96, sq=130, sk=130, dv=64),
    Shape(b=1, n=2, g=1, d=64, sq=96, sk=96, dv=128),
    Shape(b=1, n=2, g=2, d=160, sq=128, sk=128),
    Shape(b=1, n=2, g=2, d=100, sq=70, sk=70, dv=60),
    Shape(b=1, n=2, g=1, d=288, sq=66, sk=66, dv=256),
)
_CROSS_MASKS: Final[dict[str, MakeMask]] = {
    "full": _POSITIONAL["full"],
    "causal bottom right": _fixed(AttentionMask(causal=True)),
    "causal top left": _fixed(AttentionMask(causal=True, alignment="top_left")),
    "window 5,3": _POSITIONAL["window 5,3"],
}


def attention_cases() -> Iterator[Case]:
    for dtype in _DTYPES:
        for layout in LAYOUTS:
            masks = _POSITIONAL if layout == "TND" else _POSITIONAL | _EXPLICIT
            for name, mask in masks.items():
                yield _case(dtype, layout, name, _USUAL, mask)
        for shape in _SHAPES:
            for name in ("full", "causal"):
                yield _case(dtype, "SBHD", name, shape, _POSITIONAL[name])
        for shape, window in _LONG:
            yield _case(dtype, "SBHD", f"window {window.window}", shape, _fixed(window))
        yield from _width_cases(dtype)
        for shape in _CROSS:
            for name, mask in _CROSS_MASKS.items():
                yield _case(dtype, "BSHD", name, shape, mask)
        for name, mask in _CROSS_MASKS.items():
            yield _case(dtype, "TND", name, _CROSS[0], mask)
        for shape in (_USUAL, _SHAPES[0], _CROSS[0]):
            # Sequences of one length: some backends see rows of a batch in them.
            ends = {
                "cu_seqlens_q": _even(shape.b, shape.sq),
                "cu_seqlens_kv": _even(shape.b, shape.sk),
            }
            yield _case(
                dtype, "TND", "causal, one length", shape, _POSITIONAL["causal"], options=ends
            )
        yield from _option_cases(dtype)
        yield from _biased_cases(dtype)


def _width_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Every width once, the first two with the masks and layouts that kernels tell apart."""
    causal = _POSITIONAL["causal"]
    for shape in _WIDTHS:
        yield _case(dtype, "SBHD", "causal", shape, causal)
    for shape in _WIDTHS[:2]:
        for name in ("full", "causal, window 8,0", "padding"):
            yield _case(dtype, "SBHD", name, shape, (_POSITIONAL | _EXPLICIT)[name])
        yield _case(dtype, "TND", "causal", shape, causal)
        yield _case(dtype, "BNSD", "causal, lse", shape, causal, options={"return_lse": True})


def _option_cases(dtype: torch.dtype) -> Iterator[Case]:
    causal = _POSITIONAL["causal"]
    yield _case(dtype, "SBHD", "causal, scale 0.02", _USUAL, causal, options={"scale": 0.02})
    # exp overflows unless the maximum is subtracted. A kernel that recomputes its scores in the
    # backward pass cannot match float32's last digits, so float32 compares the output only.
    large = _case(dtype, "BSHD", "causal, large values", _USUAL, causal, std=12.0)
    yield large if dtype in _LOW else replace(large, gradients=())
    yield _case(dtype, "SBHD", "causal, dv 24", replace(_USUAL, dv=24), causal)
    yield _case(dtype, "BNSD", "causal, lse", _USUAL, causal, options={"return_lse": True})
    yield _case(dtype, "TND", "causal, lse", _USUAL, causal, options={"return_lse": True})
    hidden = _EXPLICIT["causal, a hidden row"]
    yield _case(dtype, "BSHD", "a hidden row, lse", _USUAL, hidden, options={"return_lse": True})
    for name, value in (("off by one", 0.0), ("sink", 1.5)):
        for layout in ("SBHD", "TND"):
            yield _case(dtype, layout, f"causal, {name}", _USUAL, causal, offset=value)
    usual: tuple[Layout, ...] = ("SBHD", "TND")
    for layout in usual:
        yield _case(dtype, layout, "causal, soft cap", _USUAL, causal, options={"softcap": 0.5})
        slopes = torch.linspace(0.1, 0.6, _USUAL.n, dtype=torch.float64)
        yield _case(
            dtype, layout, "causal, ALiBi", _USUAL, causal, options={"alibi_slopes": slopes}
        )
    for layout, shape in _SLICED:
        whole = _case(dtype, layout, "causal, sliced gradient", shape, causal)
        yield replace(whole, sliced_gradient=True)
    yield _dropout_case(dtype, "full", _POSITIONAL["full"])
    yield _dropout_case(dtype, "causal", causal)


def _biased_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Biases of every shape, one with a gradient of its own."""
    for layout in ("SBHD", "BNSD"):
        yield _case(dtype, layout, "causal, bias", _USUAL, _POSITIONAL["causal"], bias=(1, 6, 37))
    yield _case(dtype, "BSHD", "full, bias of a row", _USUAL, _POSITIONAL["full"], bias=(2, 1, 1))
    hidden = _EXPLICIT["causal, a hidden row"]
    yield _case(dtype, "SBH", "a hidden row, bias", _USUAL, hidden, bias=(2, 6, 37))


def max_logit_cases() -> Iterator[Case]:
    """The largest logit: layouts, masks, shapes, and a bias."""
    for dtype in _DTYPES:
        for layout in LAYOUTS:
            masks = _POSITIONAL if layout == "TND" else _POSITIONAL | _EXPLICIT
            for name, mask in masks.items():
                yield _max_logit(_case(dtype, layout, name, _USUAL, mask))
        for shape in (*_SHAPES, *_CROSS):
            for name, mask in _CROSS_MASKS.items():
                yield _max_logit(_case(dtype, "BSHD", name, shape, mask))
        for case in _biased_cases(dtype):
            yield _max_logit(case)


def _max_logit(case: Case) -> Case:
    """The call without values, without gradients."""

    def build(generator: torch.Generator) -> Inputs:
        return {name: value for name, value in case.build(generator).items() if name != "value"}

    return replace(case, contract="attention_max_logit", build=build, gradients=())


def _case(
    dtype: torch.dtype,
    layout: Layout,
    name: str,
    shape: Shape,
    mask: MakeMask,
    *,
    options: dict[str, Any] | None = None,
    std: float = 1.0,
    offset: float | None = None,
    bias: tuple[int, int, int] | None = None,
) -> Case:
    extra = options or {}

    def build(generator: torch.Generator) -> Inputs:
        inputs = _tensors(generator, layout, shape, std)
        if offset is not None:
            # Zero for softmax off-by-one; otherwise a different sink for every head.
            heads = torch.linspace(0.5, 1.5, shape.n, dtype=torch.float64)
            inputs["softmax_offset"] = offset * heads
        if bias is not None:
            size = (*bias, shape.sk)
            inputs["bias"] = torch.randn(size, generator=generator, dtype=torch.float64)
        return {**inputs, "mask": mask(generator, shape), **extra}

    learnable = ("softmax_offset",) if offset else ()
    if bias is not None:
        learnable = ("bias",)
    return Case(
        "attention",
        f"{layout} {name} {shape}",
        dtype,
        build,
        gradients=("query", "key", "value", *learnable),
        outputs=("output", "lse") if extra.get("return_lse") else ("output",),
    )


def _tensors(
    generator: torch.Generator, layout: Layout, shape: Shape, std: float
) -> dict[str, Any]:
    """Query, key, value and what else the layout needs."""
    dv = shape.d if shape.dv is None else shape.dv
    sizes = (
        ("query", shape.sq, shape.n, shape.d, std),
        ("key", shape.sk, shape.g, shape.d, std),
        ("value", shape.sk, shape.g, dv, 1.0),
    )
    inputs: dict[str, Any] = {
        name: _draw(generator, layout, (shape.b, length, heads, size)) * factor
        for name, length, heads, size, factor in sizes
    }
    inputs["layout"] = layout
    if layout in ("SBH", "BSH"):
        inputs["heads"] = shape.n
    if layout == "TND":
        inputs["cu_seqlens_q"] = _lengths(shape.b * shape.sq)
        inputs["cu_seqlens_kv"] = _lengths(shape.b * shape.sk)
    return inputs


def _draw(
    generator: torch.Generator, layout: Layout, size: tuple[int, int, int, int]
) -> torch.Tensor:
    """Normal numbers for ``(b, s, heads, d)`` in ``layout``; the same numbers in every layout."""
    drawn = torch.randn(size, generator=generator, dtype=torch.float64)
    arranged = {
        "SBH": lambda: drawn.transpose(0, 1).flatten(-2),
        "BSH": lambda: drawn.flatten(-2),
        "SBHD": lambda: drawn.transpose(0, 1).contiguous(),
        "BSHD": lambda: drawn,
        "BNSD": lambda: drawn.transpose(1, 2).contiguous(),
        "TND": lambda: drawn.flatten(0, 1),
    }
    return arranged[layout]()


def _lengths(tokens: int) -> torch.Tensor:
    """Cumulative lengths of four sequences: one token, a third, none, the rest."""
    return torch.tensor([0, 1, 1 + tokens // 3, 1 + tokens // 3, tokens], dtype=torch.int32)


def _even(sequences: int, length: int) -> torch.Tensor:
    """Cumulative lengths of sequences that are all ``length`` long."""
    return torch.arange(sequences + 1, dtype=torch.int32) * length


def _dropout_case(dtype: torch.dtype, name: str, mask: MakeMask) -> Case:
    """Values are the identity, so that the output is the matrix of weights that were kept."""
    shape = Shape(b=2, n=4, g=4, d=64, sq=64, sk=64)

    def build(generator: torch.Generator) -> Inputs:
        inputs = _tensors(generator, "BNSD", shape, 0.5)
        eye = torch.eye(shape.sk, dtype=torch.float64)
        inputs["value"] = eye.expand(shape.b, shape.n, -1, -1).contiguous()
        return {**inputs, "mask": mask(generator, shape), "dropout": 0.2}

    return Case(
        "attention",
        f"BNSD {name}, dropout 0.2 {shape}",
        dtype,
        build,
        gradients=("query", "key", "value"),
        expected=_kept_attention,
    )


def _kept_attention(inputs: Inputs, kept: torch.Tensor) -> torch.Tensor:
    """Attention under a given dropout mask [b, n, sq, sk]."""
    eye = inputs["value"].detach()
    options = {**inputs, "value": eye, "dropout": 0.0}
    weights = attention_reference(**as_arguments("attention", options))
    assert isinstance(weights, torch.Tensor)
    value: torch.Tensor = inputs["value"]
    share: float = 1.0 - inputs["dropout"]
    return (weights * kept / share) @ value


#: What is special about a call -> length, packed sequences, initial state.
_SETTINGS: Final = (
    ("s=1", 1, False, False),
    ("s=5", 5, False, False),
    ("s=64", 64, False, False),
    ("s=150", 150, False, False),
    ("packed", 150, True, False),
    ("initial state", 70, False, True),
)


def sequence_cases() -> Iterator[Case]:
    yield from _convolution_cases()
    yield from _scan_cases()
    yield from _delta_cases()


def _ids(generator: Generator, batch: int, length: int) -> torch.Tensor:
    """Int32 [batch, length]: sequences of some thirty positions, their numbers rising."""
    borders = torch.rand((batch, length), generator=generator) < 0.03
    borders[:, 0] = False
    borders[0, length // 2 :: 64] = True
    return borders.cumsum(1).to(torch.int32)


def _convolution_inputs(
    generator: Generator,
    length: int,
    packed: bool,
    state: bool,
    width: int = 4,
    silu: bool = True,
    channels_last: bool = False,
) -> Inputs:
    channels = 33
    x = normal(generator, 2, channels, length)
    return {
        "input": x.transpose(1, 2).contiguous().transpose(1, 2) if channels_last else x,
        "weight": normal(generator, channels, width, std=0.5),
        "bias": normal(generator, channels) if silu else None,
        "silu": silu,
        "initial_state": normal(generator, 2, channels, width - 1) if state else None,
        "sequence_ids": _ids(generator, 2, length) if packed else None,
    }


def _convolution_cases() -> Iterator[Case]:
    usual = (70, False, False)
    more = (
        ("w=2", *usual, 2),
        ("w=3", *usual, 3),
        ("no bias, no activation", *usual, 4, False),
        ("channels last", *usual, 4, True, True),
        ("packed, initial state", 5, True, True),
    )
    for setting in (*_SETTINGS, *more):
        bias = setting[0] != "no bias, no activation"
        gradients = ["input", "weight", *["bias"] * bias, *["initial_state"] * setting[3]]
        yield from table(
            "causal_convolution", _convolution_inputs, [setting], gradients=tuple(gradients)
        )


def _scan_inputs(
    generator: Generator, length: int, packed: bool, state: bool, whole: bool = True
) -> Inputs:
    """:param whole: with steps, skip and gate; else the bare recurrence, one head a group."""
    heads, groups, p, n = 4, 2 if whole else 4, 24, 17
    step = functional.softplus(normal(generator, 2, length, heads) - 2)
    rates = torch.tensor([0.05, 0.5, 2.0, 16.0], dtype=torch.float64)
    return {
        "input": normal(generator, 2, length, heads, p),
        "log_decay": -step * rates,
        "write": normal(generator, 2, length, groups, n),
        "read": normal(generator, 2, length, groups, n, std=n**-0.5),
        "step": step if whole else None,
        "skip": normal(generator, heads) if whole else None,
        "gate": normal(generator, 2, length, heads, p) if whole else None,
        "initial_state": normal(generator, 2, heads, p, n) if state else None,
        "sequence_ids": _ids(generator, 2, length) if packed else None,
    }


def _scan_cases() -> Iterator[Case]:
    bare = ("no step, no skip, no gate", 70, False, False, False)
    for setting in (*_SETTINGS, bare):
        gradients = ["input", "log_decay", "write", "read"]
        gradients += ["step", "skip", "gate"] if setting is not bare else []
        gradients += ["initial_state"] if setting[3] else []
        yield from table(
            "state_space_scan",
            _scan_inputs,
            [setting],
            gradients=tuple(gradients),
            outputs=("output", "state"),
            float32=("log_decay", "step", "skip", "initial_state"),
        )


def _delta_inputs(
    generator: Generator, length: int, packed: bool, state: bool, alike: bool = False
) -> Inputs:
    """:param alike: keys that hardly differ, the hardest case for the triangular inverse."""
    heads, groups, k, d = 4, 2, 24, 17
    key = normal(generator, 2, length, groups, k, std=0.1 if alike else 1.0)
    key = functional.normalize(key + (1.0 if alike else 0.0), dim=-1)
    rates = torch.tensor([0.0, 0.01, 0.1, 2.0], dtype=torch.float64)
    return {
        "query": functional.normalize(normal(generator, 2, length, groups, k), dim=-1),
        "key": key,
        "value": normal(generator, 2, length, heads, d),
        "log_decay": -normal(generator, 2, length, heads).abs() * rates,
        "beta": normal(generator, 2, length, heads).sigmoid(),
        "scale": 0.25,
        "initial_state": normal(generator, 2, heads, k, d) if state else None,
        "sequence_ids": _ids(generator, 2, length) if packed else None,
    }


def _delta_cases() -> Iterator[Case]:
    for setting in (*_SETTINGS, ("keys alike", 70, False, False, True)):
        gradients = ["query", "key", "value", "log_decay", "beta"]
        yield from table(
            "gated_delta_rule",
            _delta_inputs,
            [setting],
            gradients=(*gradients, *["initial_state"] * setting[3]),
            outputs=("output", "state"),
            float32=("log_decay", "initial_state"),
        )
