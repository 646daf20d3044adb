"""The time of each kernel beside its roofline: what the device's arithmetic and memory allow."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from accel_bridge.apps.parity._run import _device
from accel_bridge.apps.rehearse.devices import DEVICES
from accel_bridge.device.backend import Backend, kernels_of
from accel_bridge.kernels import (
    ATTENTION,
    GROUPED_MATMUL,
    ROTARY,
    SCALED_MASKED_SOFTMAX,
    SWIGLU,
    AttentionMask,
    AttentionOptions,
    Contract,
    Kernel,
)

#: Calls before those that are timed, and how many are.
_WARM: Final = 2
_TIMED: Final = 7


@dataclass(frozen=True, slots=True)
class Speed:
    """One kernel's usual call in bfloat16.

    :param seconds: the median.
    :param roofline: seconds that its arithmetic or its reads and writes take at least; 0 where
        the table of devices has no such device.
    """

    kernel: str
    source: str
    call: str
    seconds: float
    roofline: float

    @property
    def share(self) -> float:
        """How near to the roofline it is."""
        return self.roofline / self.seconds if self.seconds else 0.0


def speeds(backend: Backend, *, small: bool) -> Iterator[Speed]:
    """The usual call of each kernel that a layer spends its time in.

    :param small: sizes for a processor, where the figures only show that it runs.
    """
    kernels, device = kernels_of(backend), _device(backend)
    peak, bandwidth = _peaks(device)
    for contract, call, arguments, flops in _calls(128 if small else 4096, device):
        kernel: Kernel[Any, Any] = kernels.resolve(contract)
        if kernel.supports(*arguments) is not None:
            continue
        output = kernel.function(*arguments)
        moved = sum(_bytes(one) for one in (*arguments, output))
        roofline = max(flops / peak, moved / bandwidth) if peak else 0.0
        seconds = _seconds(partial(kernel.function, *arguments), device)
        yield Speed(contract.name, kernel.source, call, seconds, roofline)


def _calls(
    tokens: int, device: torch.device
) -> Iterator[tuple[Contract[Any, Any], str, tuple[Any, ...], float]]:
    """(contract, the call in words, its arguments, floating-point operations)."""

    def make(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, dtype=torch.bfloat16).to(device)

    heads, size, hidden = 16, 128, 2048
    query = make(tokens, 1, heads, size)
    options = AttentionOptions(layout="SBHD", mask=AttentionMask(causal=True))
    flops = 2.0 * heads * tokens * tokens * size
    yield ATTENTION, f"{tokens} tokens, causal", (query, query, query, options), flops
    angles = make(tokens, 1, 1, size).clamp(-1, 1)
    yield ROTARY, f"{tokens} tokens", (query, angles, angles), 0.0
    x = make(tokens, hidden)
    yield SWIGLU, f"{tokens} x {hidden}", (x,), 0.0
    side = min(tokens, 1024)
    yield SCALED_MASKED_SOFTMAX, f"{side} x {side}", (make(1, heads, side, side),), 0.0
    experts = 8
    counts = torch.full((experts,), tokens // experts, dtype=torch.int64).to(device)
    flops = 2.0 * tokens * hidden * hidden
    weight = make(experts, hidden, hidden)
    yield GROUPED_MATMUL, f"{tokens} tokens, {experts} experts", (x, weight, counts), flops


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, tuple) else 0


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """The median of several calls, each waited for."""
    module: Any = getattr(torch, device.type, None)
    wait = getattr(module, "synchronize", lambda: None)
    found = []
    for turn in range(_WARM + _TIMED):
        wait()
        began = time.perf_counter()
        call()
        wait()
        if turn >= _WARM:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def _peaks(device: torch.device) -> tuple[float, float]:
    """Operations and bytes a second of the device in the table that is called so; 0 without one."""
    module: Any = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", lambda *_: "")(device) if module else ""
    for one in DEVICES.values():
        if any(word in name for word in _CALLED.get(one.name, ())):
            return one.tflops * 1e12, one.bandwidth
    return 0.0, 0.0


#: A device of the table -> what its name, as torch says it, contains.
_CALLED: Final = {
    "a100-80g": ("A100",),
    "h200": ("H200",),
    "h100-80g": ("H100",),
    "b200": ("B200",),
    "910b-64g": ("910B",),
    "910c": ("910_93",),
}
