"""Launches of Triton kernels without Triton's look at every argument.

Triton compiles a kernel for what it knows of its arguments: their types, which of them are 1 or
multiples of 16. Before every launch it finds that out again, with the options and the values of
globals: 40 to 60 us of the host for 20 arguments, where the launch itself takes 10. What a call's
arguments are like is compared here by itself, and a kernel that was launched for such arguments
before is launched directly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import triton
from triton.compiler import CompiledKernel

#: Tritons whose compiled kernels take all arguments in their order: measured, or read.
_FIRST, _LAST = (3, 4), (3, 7)
_VERSION: Final = tuple(map(int, triton.__version__.split(".")[:2]))
_KNOWN: Final = _FIRST <= _VERSION <= _LAST
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)


def _facts(value: Any) -> Any:
    """All that Triton's compiler may know about an argument."""
    kind = type(value)
    if kind in _TENSORS:
        return value.dtype, value.data_ptr() % 16 == 0
    if kind is int:
        return value % 16 == 0, value == 1, -(2**31) <= value < 2**31, value < 2**63
    if kind is float:
        return float
    if hasattr(value, "block_shape"):  # a descriptor of a tensor
        return kind, value.base.dtype, *value.block_shape, *map(_facts, value.strides)
    return kind, value


class Quick:
    """A kernel that is launched as Triton's: ``kernel[grid](*arguments, **constants)``.

    :param kernel: what ``triton.jit`` made; its constants are passed by name, and come last.
    """

    __slots__ = ("_kernel", "_launches")

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._launches: dict[Any, tuple[Any, list[Any]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        if not _KNOWN:
            self._kernel[grid](*arguments, **constants)
            return
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        key = (device, *map(_facts, arguments), *constants.items())
        known = self._launches.get(key)
        if known is not None:
            compiled, last = known
            compiled[(*grid, 1, 1)[:3]](*arguments, *last)
            return
        compiled = self._kernel[grid](*arguments, **constants)
        # Triton's interpreter compiles nothing.
        if isinstance(compiled, CompiledKernel):
            rest = self._kernel.params[len(arguments) :]
            if all(one.is_constexpr and one.name in constants for one in rest):
                self._launches[key] = compiled, [constants[one.name] for one in rest]
