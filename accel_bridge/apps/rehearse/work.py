"""Arithmetic and memory traffic of a rehearsed step, and its time on a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from accel_bridge.apps.rehearse.devices import Device

aten: Final = torch.ops.aten

_PRODUCTS: Final = {
    aten.mm.default: (0, 1),
    aten.mm.out: (0, 1),
    aten.mm.dtype: (0, 1),
    aten.bmm.default: (0, 1),
    aten.bmm.out: (0, 1),
    aten.addmm.default: (1, 2),
    aten.addmm.out: (1, 2),
    aten.addmm_.default: (1, 2),
    aten.addmm.dtype: (1, 2),
    aten.addmm.dtype_out: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.baddbmm_.default: (1, 2),
    aten._scaled_mm.default: (0, 1),
    aten._grouped_mm.default: (0, 1),
    aten._scaled_grouped_mm.default: (0, 1),
}
#: Neither read nor write anything.
_FREE: Final = frozenset(
    {
        *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach"),
        *("_unsafe_view", "lift_fresh", "set_", "resize_"),
    }
)


@dataclass
class Work:
    """Sums of one step by kind of kernel, or else by operation: [calls, operations, bytes]."""

    kinds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, operations: float, traffic: float) -> None:
        """One kernel."""
        row = self.kinds.setdefault(kind, [0, 0.0, 0.0])
        row[0] += 1
        row[1] += operations
        row[2] += traffic

    def operation(self, func: Any, name: str, args: Sequence[Any], out: Any) -> bool:
        """An operation of torch's; whether it is a matrix product."""
        places = _PRODUCTS.get(func)
        if places is not None:
            left, right = args[places[0]], args[places[1]]
            count = 2.0 * left.numel() * right.shape[-1]
            narrow = left.element_size() == 1
            kind = "float8 matmul" if narrow else "matmul"
            if left.dtype == torch.float32:
                kind = "float32 matmul"
            result = out if isinstance(out, torch.Tensor) else left
            self.add(kind, count, _size(left) + _size(right) + _size(result))
            return True
        if "attention" in name:
            self._attention(name, args)
            return False
        if func.namespace != "aten" or func.is_view or name in _FREE:
            return False
        traffic = 0.0
        for one in (*args, out) if not isinstance(out, tuple) else (*args, *out):
            if isinstance(one, torch.Tensor):
                traffic += _size(one)
            elif isinstance(one, (list, tuple)):
                traffic += sum(_size(t) for t in one if isinstance(t, torch.Tensor))
        self.add("optimizer" if "adam" in name else name, 0.0, traffic)
        return False

    def _attention(self, name: str, args: Sequence[Any]) -> None:
        backward = "backward" in name
        query, key, value = args[1:4] if backward else args[:3]
        if name.startswith("_flash_attention"):  # [b, s, n, d], or [t, n, d]
            tokens, heads, width = query.shape[-3], query.shape[-2], query.shape[-1]
            batch = query.shape[0] if query.dim() == 4 else 1
            longest = args[9 if backward else 6]
            longest = longest if isinstance(longest, int) else key.shape[-3]
        else:  # [b, n, s, d]
            batch, heads, tokens, width = query.shape
            longest = key.shape[-2]
        causal = any(one is True for one in args)
        count = 2.0 * batch * heads * tokens * longest * (width + value.shape[-1])
        count *= (0.5 if causal else 1.0) * (2.5 if backward else 1.0)
        self.add("attention", count, sum(map(_size, (query, key, value))))


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def temporary(name: str, args: Sequence[Any]) -> int:
    """Bytes that a kernel of torch's takes for itself while it runs, beside its results.

    FlashAttention-2's backward pass (``mha_bwd``) sums dq in float32, and dk, dv for every query
    head where heads share keys; cuDNN's likewise.
    """
    if "attention" not in name or "backward" not in name:
        return 0
    query, key, value = args[1:4]
    if name.startswith("_flash_attention"):
        *_, tokens, heads, width = query.shape
        batch = query.shape[0] if query.dim() == 4 else 1
        groups, keys = key.shape[-2], key.shape[-3]
    else:
        batch, heads, tokens, width = query.shape
        groups, keys = key.shape[1], key.shape[2]
    padded = math.ceil(tokens / 128) * 128
    size = batch * heads * padded * (math.ceil(width / 32) * 32 * 4 + 4)
    if groups != heads:
        size += batch * heads * keys * (width + value.shape[-1]) * query.element_size()
    return int(size)


#: Share of the data sheet's arithmetic or bandwidth that each kind of kernel reaches: the median
#: over the profiled rows of docs/performance.json (H200).
REACHED: Final = {
    "matmul": 0.71,
    "float32 matmul": 0.35,
    "float8 matmul": 0.55,
    "attention": 0.42,
    "rest": 0.70,
    "optimizer": 0.80,
}
#: An operation costs the host about this much (Python, autograd, the launch): small models wait
#: for it. gpt-124m-512 has 3,100 launches in a step of 142 ms, 24 ms of which the GPU works.
LAUNCH: Final = 40e-6
#: Of the bandwidth between devices.
LINK_REACHED: Final = 0.7


@dataclass(frozen=True, slots=True)
class Network:
    """What connects the devices.

    :param link: within a machine, bytes a second of one device in one direction; None: the device
        table's.
    :param network: likewise between machines; by default 400 Gbit/s.
    :param latency: seconds that a collective waits.
    :param per_node: devices of a machine.
    """

    link: float | None = None
    network: float = 50e9
    latency: float = 20e-6
    per_node: int = 8

    def seconds(self, kind: str, size: int, ranks: Sequence[int], device: Device) -> float:
        """Time of a collective by itself; rings, for what all ranks get."""
        number = len(ranks)
        within = ranks[0] // self.per_node == ranks[-1] // self.per_node
        speed = (self.link or device.link) if within else self.network
        part = (number - 1) / number
        share = {"all_reduce": 2 * part, "all_gather": number - 1.0}
        share |= dict.fromkeys(("reduce_scatter", "all_to_all"), part)
        return self.latency + share.get(kind, 1.0) * size / (speed * LINK_REACHED)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a step.

    :param computing: of kernels; ``waiting``: of a pipeline's fill and drain;
        ``communicating``: of collectives, none of it hidden.
    :param low: if all communication hides behind computation; ``high``: if none does, and kernels
        reach a quarter less.
    """

    seconds: float
    computing: float
    waiting: float
    communicating: float
    low: float
    high: float
    kinds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """Two lines."""
        waiting = f"waiting in the pipeline {self.waiting:.3g}, " if self.waiting else ""
        return (
            f"a step takes about {self.seconds:.3g} s ({self.low:.3g} to {self.high:.3g}): "
            f"computing {self.computing:.3g}, {waiting}communicating {self.communicating:.3g}\n"
            "  not modelled: data loading, other jobs on the network, unlike pipeline stages, "
            "uneven experts"
        )


def estimate(rank: dict[str, Any], device: Device, network: Network) -> Estimate:
    """Sum kernels at the share of the device's speed that their kind reaches."""
    kinds = {}
    calls = 0.0
    for kind, (count, operations, traffic) in rank["work"].items():
        calls += count
        share = REACHED.get(kind, REACHED["rest"])
        speed = device.tflops * 1e12
        if kind == "float8 matmul" and device.tflops_fp8:
            speed = device.tflops_fp8 * 1e12
        elif kind == "float32 matmul":
            speed = device.tflops * 1e12 / 2
        arithmetic = operations / (speed * share)
        kinds[kind] = max(arithmetic, traffic / (device.bandwidth * REACHED["rest"]))
    computing = max(sum(kinds.values()), calls * LAUNCH)
    waiting = 0.0
    if schedule := rank["schedule"]:
        turns = schedule["chunks"] * schedule["microbatches"]
        waiting = computing * (schedule["stages"] - 1) / turns
    last = max((call[0] for call in rank["calls"]), default=0)
    communicating = 0.0
    for step, kind, group, _, _, size, _, _ in rank["calls"]:
        ranks = rank["own_groups"][group]["ranks"]
        if step == last and len(ranks) > 1:
            communicating += network.seconds(kind, size, ranks, device)
    busy = computing + waiting
    seconds = busy + communicating / 2
    low, high = busy * 0.85, busy * 1.25 + communicating
    return Estimate(seconds, computing, waiting, communicating, low, high, kinds)
