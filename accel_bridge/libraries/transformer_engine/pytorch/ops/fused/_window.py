"""Neighbouring operations of given types, and what a product does for the one behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..basic import BasicLinear, Bias
from ..op import FusibleOperation, OperationContext

Types = type | tuple[type, ...]


def bias_behind(
    linear: BasicLinear, bias: Bias, context: OperationContext, kwargs: Mapping[str, Any]
) -> torch.Tensor:
    """The bias [m] of the operation behind a product, which adds it in that operation's place.

    :raises ValueError: the operation got arguments of its own.
    """
    if kwargs:
        raise ValueError("Bias operation forward does not expect keyword arguments")
    context.grad_input_quantizer = linear.get_grad_output_quantizer()
    return bias.bias


def replace_runs(
    ops: Sequence[FusibleOperation],
    types: Sequence[Types],
    make: Callable[..., FusibleOperation | None],
) -> list[FusibleOperation]:
    """``ops`` with each run of ``types`` replaced by what ``make`` returns for it.

    :param make: takes the run's operations; None leaves them alone.
    """
    out: list[FusibleOperation] = []
    rest: list[Any] = list(ops)
    while rest:
        run = rest[: len(types)]
        fits = len(run) == len(types)
        fits = fits and all(isinstance(op, kind) for op, kind in zip(run, types, strict=True))
        fused = make(*run) if fits else None
        if fused is None:
            out.append(rest.pop(0))
        else:
            out.append(fused)
            del rest[: len(types)]
    return out
