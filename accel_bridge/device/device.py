"""What every backend must state about its device, and names of its module spelled as CUDA's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Device:
    """The device that the redirection engine puts behind the name ``torch.cuda``.

    :param type: torch device type: ``cuda``, ``npu`` or ``cpu``.
    :param module: object with the functions of ``torch.cuda`` for this device
        (``torch.npu``; a module of ours for the CPU).
    :param communication_backend: torch.distributed backend used where a script says ``nccl``.
    :param pinned_memory: whether page-locked host memory exists for this device.
    :param tensor_type: prefix of ``Tensor.type()`` names on this device, e.g. ``torch.npu``.
    :param indexed: devices of this type are numbered (``npu:0``); False for the one host.
    :param streams: the device runs asynchronously, in streams.
    """

    type: str
    module: Any
    communication_backend: str
    pinned_memory: bool
    tensor_type: str
    indexed: bool = True
    streams: bool = True


class Renamed:
    """For ``DeviceSpec.module``: the vendor's module with some names spelled as in CUDA's."""

    def __init__(self, module: Any, **names: str) -> None:
        """:param names: name in ``torch.cuda`` -> name in ``module``."""
        self._module = module
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, self._names.get(name, name))
