"""Host and device in one memory: which side a tensor is on, so that a transfer is a copy.

Where device tensors are host tensors, torch sees no transfer and hands the tensor itself back. Here
its storage carries the side on which it was made: by a factory, by an earlier transfer, by
``torch.load``. Views share their storage, and so the side. The result of an operation carries none,
as nothing can watch every operation at no cost: to name a side for it copies, which is never wrong,
and where CUDA would copy nothing only costs time.

``Tensor.device`` is ``cpu`` on both sides. Which object it returns tells the side, so that
``to(other.device)`` knows what was meant.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch.utils._device import DeviceContext

from accel_bridge.device._devices import is_cuda_string

Side = Literal["host", "pinned", "device"]
#: A side, another device than these, or None where nobody knows.
Target = Literal["host", "device", "elsewhere"] | None

#: Attribute of a storage.
_SIDE: Final = "_accel_bridge_side"
#: Their ``device`` is ours; subclasses may have one of their own.
PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})
_storage_of: Final = torch._C.TensorBase.untyped_storage


class Sides:
    """The sides of one redirection's tensors."""

    def __init__(self, current: torch.device) -> None:
        """:param current: the object that stands for the device in translated designations."""
        self._devices: dict[Side | None, torch.device] = {
            "device": current,
            "host": (host := torch.device("cpu")),
            "pinned": host,
            None: torch.device("cpu"),
        }
        #: Side of a tensor that names no device.
        self._default: Target = "host"
        #: Until a tensor was on the device, all are on the host.
        self._used = False

    def of(self, tensor: torch.Tensor) -> Side | None:
        """The side of a tensor's memory; None where nobody knows."""
        side = self.of_storage(_storage(tensor))
        return side if side is not None or self._used else "host"

    def of_storage(self, storage: Any) -> Side | None:
        """What a storage carries."""
        side: Side | None = getattr(storage, _SIDE, None)
        return side

    def mark(self, tensor: torch.Tensor, side: Side) -> None:
        """Note the side of a tensor's memory."""
        storage = _storage(tensor)
        if storage is not None:
            self.mark_storage(storage, side)

    def mark_storage(self, storage: Any, side: Side) -> None:
        """Note the side of a storage."""
        setattr(storage, _SIDE, side)
        self._used = self._used or side == "device"

    def named(self, device: Any) -> Target:
        """The side that a device designation means."""
        kind = type(device)
        if kind is str:
            if is_cuda_string(device):
                return "device"
            return "host" if device == "cpu" else _elsewhere(device)
        if kind is torch.device:
            if device is self._devices["device"]:
                return "device"
            if device is self._devices[None]:
                return None if self._used else "host"
            if device.type == "cuda":
                return "device"
            return "host" if device.type == "cpu" and device.index is None else _elsewhere(device)
        return "device" if isinstance(device, int) else None

    def of_device_named(self, tensor: torch.Tensor, device: Any) -> Target:
        """As :meth:`named`, for a transfer of ``tensor``."""
        target = self.named(device)
        if target == "host" and type(device) is torch.device and type(tensor) not in PLAIN:
            # A subclass (a fake tensor) reads devices of its own, which tell no side.
            known = device is self._devices["host"]
            return target if known or not self._used else None
        return target

    def like(self, tensor: torch.Tensor) -> Target:
        """The side that ``to(tensor)`` means."""
        if tensor.device.type != "cpu":
            return "elsewhere"
        side = self.of(tensor)
        return "host" if side == "pinned" else side

    def default(self) -> Target:
        """The side of a new tensor that names none."""
        for place in reversed(range(torch._C._len_torch_function_stack())):
            mode = torch._C._get_function_stack_at(place)
            if isinstance(mode, DeviceContext):
                return self.named(mode.device)
        return self._default

    def set_default(self, side: Target) -> None:
        """The side of new tensors from now on, outside ``with torch.device(...)``."""
        self._default = side

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """The object that says ``cpu`` and tells the side."""
        return self._devices[self.of(tensor)]

    def device_named(self, target: Target) -> torch.device:
        """A device that tells the side by its value, for torch's own parsers.

        ``cpu:0`` is nobody's device, so torch copies.
        """
        if target == "device":
            return torch.device("cuda")
        return torch.device("cpu") if target == "host" else torch.device("cpu", 0)

    def moved(self, source: Any, result: Any, target: Target) -> Any:
        """What a transfer of ``source`` returns.

        :param result: what torch returned for it.
        :returns: a copy where torch copied nothing and the tensor is not known to be there.
        """
        if target == "elsewhere":
            return result
        if result is source:
            if target is not None and self._on(source, target):
                return result
            result = source.clone()
        if target is not None:
            self.mark(result, target)
        return result

    def _on(self, tensor: torch.Tensor, target: Target) -> bool:
        side = self.of(tensor)
        return side == target or (side == "pinned" and target == "host")


def _elsewhere(device: Any) -> Target:
    """Of a device that is neither: ``cpu:0`` is read as a copy that torch makes itself."""
    return None if torch.device(device).type == "cpu" else "elsewhere"


def _storage(tensor: torch.Tensor) -> Any:
    """A tensor's storage; None for sparse tensors and for those of compilers, vmap and tracers."""
    if torch.compiler.is_compiling():
        return None
    try:
        if type(tensor) in PLAIN:
            return _storage_of(tensor)
        with torch._C.DisableTorchFunctionSubclass():
            return _storage_of(tensor)
    except (NotImplementedError, RuntimeError, TypeError):
        return None
