"""The cases of what runs along a sequence: convolution, state-space scan, gated delta rule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional

from accel_bridge.apps.parity._case import DTYPES, Case, Generator, Inputs, normal

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
    """Every case of the three contracts."""
    for dtype in DTYPES:
        yield from _convolution_cases(dtype)
        yield from _scan_cases(dtype)
        yield from _delta_cases(dtype)


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
        "weight": normal(generator, channels, width, spread=0.5),
        "bias": normal(generator, channels) if silu else None,
        "silu": silu,
        "initial_state": normal(generator, 2, channels, width - 1) if state else None,
        "sequence_ids": _ids(generator, 2, length) if packed else None,
    }


def _convolution_cases(dtype: torch.dtype) -> Iterator[Case]:
    more: tuple[tuple[str, dict[str, Any]], ...] = (
        ("w=2", {"width": 2}),
        ("w=3", {"width": 3}),
        ("no bias, no activation", {"silu": False}),
        ("channels last", {"channels_last": True}),
    )
    calls: list[tuple[str, dict[str, Any]]] = [
        (name, {"length": length, "packed": packed, "state": state})
        for name, length, packed, state in _SETTINGS
    ]
    calls += [(name, {"length": 70, "packed": False, "state": False, **own}) for name, own in more]
    for name, options in calls:
        gradients = ["input", "weight"]
        gradients += ["bias"] if options.get("silu", True) else []
        gradients += ["initial_state"] if options["state"] else []
        build = partial(_convolution_inputs, **options)
        yield Case("causal_convolution", name, dtype, build, tuple(gradients))


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
        "read": normal(generator, 2, length, groups, n, spread=n**-0.5),
        "step": step if whole else None,
        "skip": normal(generator, heads) if whole else None,
        "gate": normal(generator, 2, length, heads, p) if whole else None,
        "initial_state": normal(generator, 2, heads, p, n) if state else None,
        "sequence_ids": _ids(generator, 2, length) if packed else None,
    }


def _scan_cases(dtype: torch.dtype) -> Iterator[Case]:
    bare = ("no step, no skip, no gate", 70, False, False)
    for name, length, packed, state in (*_SETTINGS, bare):
        whole = name != bare[0]
        gradients = ["input", "log_decay", "write", "read"]
        gradients += ["step", "skip", "gate"] if whole else []
        gradients += ["initial_state"] if state else []
        yield Case(
            "state_space_scan",
            name,
            dtype,
            partial(_scan_inputs, length=length, packed=packed, state=state, whole=whole),
            gradients=tuple(gradients),
            outputs=("output", "state"),
            float32=("log_decay", "step", "skip", "initial_state"),
        )


def _delta_inputs(
    generator: Generator, length: int, packed: bool, state: bool, alike: bool = False
) -> Inputs:
    """:param alike: keys that hardly differ, the hardest case for the triangular inverse."""
    heads, groups, k, d = 4, 2, 24, 17
    key = normal(generator, 2, length, groups, k, spread=0.1 if alike else 1.0)
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


def _delta_cases(dtype: torch.dtype) -> Iterator[Case]:
    alike = ("keys alike", 70, False, False)
    for name, length, packed, state in (*_SETTINGS, alike):
        build = partial(
            _delta_inputs, length=length, packed=packed, state=state, alike=name == alike[0]
        )
        gradients = ["query", "key", "value", "log_decay", "beta"]
        yield Case(
            "gated_delta_rule",
            name,
            dtype,
            build,
            gradients=(*gradients, "initial_state") if state else tuple(gradients),
            outputs=("output", "state"),
            float32=("log_decay", "initial_state"),
        )
