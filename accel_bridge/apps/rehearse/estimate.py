"""The time of a step on a device, from the operations of a rehearsed step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from accel_bridge.apps.rehearse.devices import Device

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
#: Of the data sheet's bandwidth between devices, and seconds that a collective waits.
LINK_REACHED: Final = 0.7
LATENCY: Final = 20e-6


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a step.

    :param computing: of kernels; ``communicating``: of collectives, none of it hidden.
    :param low: if all communication hides behind computation; ``high``: if none does, and kernels
        reach a quarter less.
    """

    seconds: float
    computing: float
    communicating: float
    low: float
    high: float
    kinds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def text(self) -> str:
        """Two lines."""
        return (
            f"a step takes about {self.seconds:.3g} s ({self.low:.3g} to {self.high:.3g}): "
            f"computing {self.computing:.3g}, communicating {self.communicating:.3g}\n"
            "  not modelled: data loading, other jobs on the network, pipeline bubbles, "
            "uneven experts"
        )


def estimate(rank: dict[str, Any], device: Device) -> Estimate:
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
    last = max((call[0] for call in rank["calls"]), default=0)
    communicating = 0.0
    for step, kind, group, _, _, size, _, _ in rank["calls"]:
        number = len(rank["own_groups"][group]["ranks"])
        if step != last or number < 2:
            continue
        factor = {"all_reduce": 2.0, "all_gather": number - 1.0}.get(kind, 1.0)
        communicating += LATENCY + factor * size / (device.link * LINK_REACHED)
    seconds = computing + communicating / 2
    low, high = computing * 0.85, computing * 1.25 + communicating
    return Estimate(seconds, computing, communicating, low, high, kinds)
