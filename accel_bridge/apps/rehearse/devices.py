"""The devices that a rehearsal can be for, with the source of each fact."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.environment import did_you_mean

#: The type of the fake device. It is torch's PrivateUse1: autograd asks a CUDA build's driver
#: about devices of type cuda, and there is none.
TYPE: Final = "rehearsed"
GB: Final = 10**9
#: Devices of a machine, where ``--nproc-per-node gpu`` or ``nvidia-smi`` tells a script how many.
PER_NODE: Final = 8
MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device.

    :param name: as on the command line.
    :param title: as the device calls itself.
    :param memory: bytes that ``torch.cuda.mem_get_info`` says are there in all.
    :param context: bytes that a process occupies before its first tensor; an estimate.
    :param multiprocessors: they set the size of some kernels' temporaries.
    :param capability: CUDA compute capability; it chooses kernels.
    :param tflops: dense matrix arithmetic of bfloat16, 10^12 operations a second.
    :param tflops_fp8: likewise of float8; 0 where there is none.
    :param bandwidth: of memory, bytes a second.
    :param link: to other devices of its machine, bytes a second in one direction.
    :param source: where the figures are from.
    :param kernels: name of the backend whose kernels are taken.
    :param limits: the chip whose operators' limits are compared with each call, for the backend
        "ascend".
    """

    name: str
    title: str
    memory: int
    context: int
    multiprocessors: int
    capability: tuple[int, int]
    tflops: float
    tflops_fp8: float
    bandwidth: float
    link: float
    source: str
    kernels: str = "cuda"
    limits: str = ""


def _device(row: tuple[Any, ...]) -> Device:
    one = Device(*row)
    return replace(
        one,
        memory=one.memory * MIB,
        context=one.context * MIB,
        bandwidth=one.bandwidth * 1e9,
        link=one.link * 1e9,
    )


_NVIDIA: Final = "NVIDIA's data sheet; memory as nvidia-smi and torch state it"
_HUAWEI: Final = "Huawei's product page; no kernel of it was measured"

#: In the order of the fields; memory and context in MiB, bandwidth and link in 10^9 bytes a second.
_TABLE: Final[tuple[tuple[Any, ...], ...]] = (
    ("a100-80g", "NVIDIA A100-SXM4-80GB", 81_095, 420, 108, (8, 0), 312, 0, 2039, 300, _NVIDIA),
    ("h100-80g", "NVIDIA H100 80GB HBM3", 81_079, 520, 132, (9, 0), 989, 1979, 3350, 450, _NVIDIA),
    ("h200", "NVIDIA H200", 143_171, 530, 132, (9, 0), 989, 1979, 4800, 450, _NVIDIA),
    ("b200", "NVIDIA B200", 182_659, 600, 148, (10, 0), 2250, 4500, 8000, 900, _NVIDIA),
    *(
        (name, title, 62_464, 1024, 24, (8, 0), tflops, 0, 1600, 196, _HUAWEI, "cuda", limits)
        for name, title, tflops, limits in (
            ("910b-64g", "Ascend 910B", 354, "910B"),
            ("910c", "a die of an Ascend 910C", 376, "910C"),
        )
    ),
    # For comparison with what ranks on this machine do.
    ("host", "this machine", 2**30, 0, 2, (8, 0), 0.1, 0, 10, 1, "not measured: for tests", "cpu"),
)
DEVICES: Final = {row[0]: _device(row) for row in _TABLE}
DEFAULT: Final = "h100-80g"


class DeviceNameError(BridgeError):
    """There is no such device in the table."""


def find(name: str) -> Device:
    """The device of that name; ``gb:80`` is an H100 with 80 times 10^9 bytes.

    :raises DeviceNameError: there is none.
    """
    if sized := re.fullmatch(r"gb:(\d+(?:\.\d+)?)", name):
        like = DEVICES[DEFAULT]
        memory = int(float(sized[1]) * GB)
        if memory > like.context:
            source = "the command line; the rest is an H100's"
            title = f"a device of {sized[1]} GB"
            return replace(like, name=name, title=title, memory=memory, source=source)
    if name in DEVICES:
        return DEVICES[name]
    raise DeviceNameError(
        f"there is no device {name!r} in the table{did_you_mean(name, DEVICES)}",
        evidence=f"known devices: {', '.join(DEVICES)}, and gb:N for one of N gigabytes",
        next=f"accel-bridge rehearse --device {DEFAULT} -- COMMAND",
    )
