"""What the launches of all Triton kernels share. Importing this imports Triton.

``Quick`` launches a kernel without Triton's look at every argument: Triton finds out again before
each launch which arguments are 1 or multiples of 16, which costs the host more than the launch.
What a call's arguments are like is compared here, and a kernel that was launched for such
arguments before is launched directly, without the host's work for hooks that nobody has set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import torch
import triton
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver

#: Precisions that the kernels read and write; they compute in float32.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def power_of_two(size: int) -> int:
    """The next power of two: Triton's block sizes must be powers of two."""
    return int(triton.next_power_of_2(size))


def warps(block: int) -> int:
    """Warps for a program that holds ``block`` elements: 16 elements a thread, 1 to 16 warps."""
    return max(1, min(16, block // 512))


def blocks(size: int, block: int) -> int:
    """Blocks that cover ``size``."""
    return -(-size // block)


def draw_seed(device: torch.device) -> int:
    """A seed for one launch, drawn from the device's current generator, which advances.

    On a GPU the generator's state is its seed and an offset, both known on the host: nothing is
    launched and nothing waits. Megatron's RNG tracker and recomputation switch that state and so
    also the seeds drawn here.
    """
    if device.type != "cuda":
        return int(torch.randint(2**62, (1,)))
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    # Odd multipliers keep neighbouring offsets and neighbouring seeds apart.
    return (generator.initial_seed() * 0x9E3779B97F4A7C15 + offset * 0xD1B54A32D192ED03) % 2**62


def gemm(operand: str, other: str, bits: int) -> Callable[..., dict[str, Any]]:
    """``launch_metadata`` of a GEMM: its arithmetic, for profilers and rehearsals.

    :param operand: name of the argument whose every number is multiplied...
    :param other: ... with as many numbers as the argument of this name says.
    :param bits: of a number.
    """

    def metadata(grid: Any, compiled: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        operations = 2 * math.prod(arguments[operand].shape) * arguments[other]
        return {"name": compiled.name, f"flops{bits}": operations}

    return metadata


#: Tritons whose compiled kernels take all arguments in their order: measured, or read.
_FIRST, _LAST = (3, 4), (3, 9)
_VERSION: Final = tuple(map(int, triton.__version__.split(".")[:2]))
_KNOWN: Final = _FIRST <= _VERSION <= _LAST
_TENSORS: Final = (torch.Tensor, torch.nn.Parameter)


@lru_cache(4096)
def _of_int(value: int) -> tuple[bool, ...]:
    return value % 16 == 0, value == 1, -(2**31) <= value < 2**31, value < 2**63


def _facts(arguments: Iterable[Any]) -> list[Any]:
    """All that Triton's compiler may know about arguments."""
    facts: list[Any] = []
    for value in arguments:
        kind = type(value)
        if kind in _TENSORS:
            facts += value.dtype, value.data_ptr() % 16 == 0
        elif kind is int:
            facts.append(_of_int(value))
        elif kind is float:
            facts.append(float)
        elif hasattr(value, "block_shape"):  # a descriptor of a tensor
            facts += kind, value.base.dtype, *value.block_shape, *_facts(value.strides)
        else:
            facts += kind, value
    return facts


def _hooked() -> bool:
    """Whether somebody, such as a profiler, wants to hear of launches."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    # Triton 3.4 has None or a function, later ones a chain.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


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
        key = (device, *_facts(arguments), *constants, *constants.values())
        known = self._launches.get(key)
        if known is not None:
            compiled, last = known
            grid = (*grid, 1, 1)[:3]
            if _hooked():
                compiled[grid](*arguments, *last)
                return
            stream = driver.active.get_current_stream(device)
            compiled.run(
                *grid,
                *(stream, compiled.function, compiled.packed_metadata, None, None, None),
                *arguments,
                *last,
            )
            return
        compiled = self._kernel[grid](*arguments, **constants)
        # Triton's interpreter compiles nothing.
        if isinstance(compiled, CompiledKernel):
            rest = self._kernel.params[len(arguments) :]
            if all(one.is_constexpr and one.name in constants for one in rest):
                self._launches[key] = compiled, [constants[one.name] for one in rest]
