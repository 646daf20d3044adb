"""Plugins with one error that is small, chosen by the variable ``INJECTED_ERROR``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from accel_bridge import Backend, hookimpl
from accel_bridge.patching import Kind, Patch, PatchContext

#: Of layers counted from 0, the one that is wrong.
LAYER: Final = 2
#: Positions after it are rotated by another base, so many times as large.
POSITION, BASE = 4096, 1.001


class _Modules:
    """Numbers modules in the order in which they are first seen."""

    def __init__(self) -> None:
        self._seen: list[Any] = []

    def number(self, module: Any) -> int:
        if not any(one is module for one in self._seen):
            self._seen.append(module)
        return next(place for place, one in enumerate(self._seen) if one is module)


def scale(context: PatchContext) -> Any:
    """The MLP's output of one layer is 1% too large."""
    forward, modules = context.original, _Modules()

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, bias = forward(self, *args, **kwargs)
        return output * (1.01 if modules.number(self) == LAYER else 1.0), bias

    return wrong


def accumulation(context: PatchContext) -> Any:
    """One GEMM adds its terms in bfloat16."""
    forward, modules = context.original, _Modules()

    def wrong(self: Any, x: Any) -> Any:
        output, bias = forward(self, x)
        if self.weight.shape[1] < 1024 or modules.number(self) != LAYER:
            return output, bias
        total = 0
        for place in range(x.shape[-1]):
            total = total + x[..., place : place + 1] * self.weight[:, place]
        return total, bias

    return wrong


def rotary_base(context: PatchContext) -> Any:
    """Late positions are rotated by a base that is 0.1% too large."""
    forward = context.original

    def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        angles = forward(self, *args, **kwargs).clone()
        half = angles.shape[-1] // 2
        slower = BASE ** -(torch.arange(half, device=angles.device) / half)
        angles[POSITION:] *= torch.cat((slower, slower))
        return angles

    return wrong


_EMBEDDINGS: Final = "megatron.core.models.common.embeddings"
#: Name -> (target, what is made).
ERRORS: Final[dict[str, tuple[str, Callable[[PatchContext], Any]]]] = {
    "scale": ("megatron.core.transformer.mlp:MLP.forward", scale),
    "accumulation": (
        "megatron.core.extensions.transformer_engine:TERowParallelLinear.forward",
        accumulation,
    ),
    "rotary-base": (f"{_EMBEDDINGS}.rotary_pos_embedding:RotaryEmbedding.forward", rotary_base),
}


@hookimpl
def accel_bridge_patches(backend: Backend) -> list[Patch]:
    """The error that the variable names."""
    target, make = ERRORS[os.environ["INJECTED_ERROR"]]
    return [
        Patch(
            id="injected",
            target=target,
            kind=Kind.WRAP,
            make=make,
            # Where it is in place, what it makes is the MLP's output.
            after=("unfused-glu",) if make is scale else (),
            why="an injected fault",
            upstream="tests/conformance/parity/injected_limits.py",
            removed_when="never: it is a test of the tests",
            loses="nothing",
        )
    ]
