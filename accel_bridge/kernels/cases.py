"""What a parity case is, and how its inputs are made and moved.

A contract's cases may stand beside its reference: ``Contract(..., cases=function)``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Final

import torch


class Rule(Enum):
    """A rule of the tolerance policy."""

    BITWISE = "bitwise"
    RATIO = "ratio"
    TOLERANCE = "tolerance"


#: Precisions that every kernel is judged in.
DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
Generator = torch.Generator
#: Inputs of a call by name: tensors, lists of tensors, masks, and each option by itself.
Inputs = Mapping[str, Any]
#: Makes a case's inputs, floats in float64.
Build = Callable[[Generator], Inputs]


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a contract with everything needed to judge it.

    :param contract: name of the contract.
    :param name: what is special about the call; unique within contract and dtype.
    :param dtype: precision of the inputs.
    :param build: makes the inputs; floats are then rounded to ``dtype``.
    :param gradients: names of the inputs whose gradients are compared too.
    :param outputs: names of the results, in order.
    :param float32: names of the inputs that stay float32 whatever ``dtype`` is.
    :param changed: for contracts that work in place: names of the inputs that are the results.
    :param sliced_gradient: the output's gradient comes as a slice of a wider tensor.
    :param rule: RATIO or BITWISE.
    :param expected: for calls with dropout: the result for inputs and the mask of what was kept,
        in plain PyTorch; see :mod:`accel_bridge.apps.parity._run`.
    """

    contract: str
    name: str
    dtype: torch.dtype
    build: Build
    gradients: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    float32: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    sliced_gradient: bool = False
    rule: Rule = Rule.RATIO
    expected: Callable[[Inputs, torch.Tensor], torch.Tensor] | None = None

    def inputs(self) -> dict[str, Any]:
        """The inputs, rounded; the same in every process and on every machine."""
        seed = zlib.crc32(f"{self.contract} {self.name}".encode())
        made = self.build(torch.Generator().manual_seed(seed))
        return {
            name: convert(value, dtype=torch.float32 if name in self.float32 else self.dtype)
            for name, value in made.items()
        }


def normal(generator: Generator, *size: int, std: float = 1.0) -> torch.Tensor:
    """Normally distributed numbers in float64."""
    return torch.randn(size, generator=generator, dtype=torch.float64) * std


def convert(
    value: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Any:
    """A copy of ``value``, including tensors inside it, in another dtype (floats) or place.

    A view with strides stays one, so that cases can test layouts.
    """
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone(memory_format=torch.preserve_format).to(device=device)
        # FP8 numbers are data: their precision is no choice of the caller.
        wide = copy.is_floating_point() and copy.element_size() > 1
        return copy.to(dtype) if dtype is not None and wide else copy
    if is_dataclass(value) and not isinstance(value, type):  # such as a mask
        held = {one.name: getattr(value, one.name) for one in fields(value)}
        return replace(value, **{name: convert(one, dtype, device) for name, one in held.items()})
    if isinstance(value, list):
        return [convert(item, dtype, device) for item in value]
    return value
