"""The time of a step on a device, from the operations of a rehearsed step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
#: Among the kinds of work, and no kernel: the modules that ran forward.
MODULES: Final = "modules"
#: Likewise: operations of an optimizer on the host, and copies to it or from it.
HOST: Final = "host"
COPIES: Final = "copies"
#: A device's share of its host's memory, and its bus, bytes a second: of usual machines.
HOST_SPEED: Final = 50e9
#: An operation costs the host about this much (Python, autograd, the launch): small models and
#: small experts wait for it. Calibrated on the rows of docs/performance.json that it limits.
LAUNCH: Final = 60e-6
#: ... and in a loop of plain operations, which is what more than so many of a module are, this.
DISPATCH: Final = 20e-6
FEW: Final = 10
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
        ``communicating``: of collectives and of copies to the host, none of it hidden.
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
    work = dict(rank["work"])
    modules = work.pop(MODULES, (0, 0, 0))[0]
    calls = sum(count for count, _, _ in work.values())
    few = min(calls, FEW * modules) if modules else calls
    for kind, (_, operations, traffic) in work.items():
        share = REACHED.get(kind, REACHED["rest"])
        speed = device.tflops * 1e12
        if kind == "float8 matmul" and device.tflops_fp8:
            speed = device.tflops_fp8 * 1e12
        elif kind == "float32 matmul":
            speed = device.tflops * 1e12 / 2
        arithmetic = operations / (speed * share)
        bandwidth = HOST_SPEED if kind in (HOST, COPIES) else device.bandwidth * REACHED["rest"]
        kinds[kind] = max(arithmetic, traffic / bandwidth)
    launching = few * LAUNCH + (calls - few) * DISPATCH
    host, communicating = kinds.get(HOST, 0.0), kinds.get(COPIES, 0.0)
    computing = max(sum(kinds.values()) - host - communicating, launching)
    waiting = 0.0
    if schedule := rank["schedule"]:
        turns = schedule["chunks"] * schedule["microbatches"]
        waiting = computing * (schedule["stages"] - 1) / turns
    computing += host
    last = max((call[0] for call in rank["calls"]), default=0)
    for step, kind, group, _, _, size, _, _, times in rank["calls"]:
        ranks = rank["own_groups"][group]["ranks"]
        if step == last and len(ranks) > 1:
            communicating += times * network.seconds(kind, size, ranks, device)
    busy = computing + waiting
    seconds = busy + communicating / 2
    low, high = busy * 0.85, busy * 1.25 + communicating
    return Estimate(seconds, computing, waiting, communicating, low, high, kinds)
