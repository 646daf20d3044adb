"""Which values designate a CUDA device, what they become, and on which side a tensor is where host
and device are one memory.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import torch
from torch.utils._device import DeviceContext

from accel_bridge.device.device import Device
from accel_bridge.errors import BridgeError


def is_cuda_string(value: object) -> bool:
    """``cuda`` or ``cuda:N``."""
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def is_cuda_designation(value: object) -> bool:
    """Whether torch would read ``value`` as a CUDA device.

    That is a device number (an int, but not a bool), ``"cuda"``, ``"cuda:N"`` or
    ``torch.device("cuda", N)``.
    """
    if isinstance(value, torch.device):
        return value.type == "cuda"
    if isinstance(value, str):
        return is_cuda_string(value)
    return isinstance(value, int) and not isinstance(value, bool)


class InvalidDevice(BridgeError, RuntimeError):
    """A device number beyond those of this machine; a RuntimeError, as CUDA's is."""


def check_index(index: int, count: int) -> None:
    """A device's number must be below their count.

    :raises InvalidDevice: it is not.
    """
    if index >= count:
        raise InvalidDevice(
            "CUDA error: invalid device ordinal.",
            evidence=f"device {index} was asked for; torch.cuda.device_count() is {count}",
            next=f"use a device below {count}, such as cuda:$LOCAL_RANK; there is one for each "
            "process that torchrun starts here",
        )


class DeviceMap:
    """Turns CUDA designations into devices of ``spec``; anything else comes back unchanged."""

    def __init__(self, spec: Device) -> None:
        self._type = spec.type
        self._indexed = spec.indexed
        #: ``torch.device(1)`` has the type of the device itself.
        self._types = {"cuda", spec.type} - {"cpu"}
        self._module = spec.module
        #: Numbers that are known to be those of a device.
        self._valid = {0}
        #: The device without a number: the current one.
        self.current = torch.device(spec.type)
        self._strings: dict[str, torch.device] = {}

    def translate(self, value: Any) -> Any:
        """The device for a designation, device numbers included."""
        # Exact types first: this runs on every call of a tensor factory.
        kind = type(value)
        if kind is torch.device:
            return self._number(value.index) if value.type in self._types else value
        if kind is str:
            return self._string(value)
        if kind is int or is_cuda_designation(value):
            return self._number(int(value))
        return value

    def translate_named(self, value: Any) -> Any:
        """As :meth:`translate`, but leaves ints alone: for places where an int may be a count."""
        kind = type(value)
        if kind is str:
            return self._string(value)
        if kind is torch.device and value.type in self._types:
            return self._number(value.index)
        return value

    def _string(self, value: str) -> torch.device | str:
        known = self._strings.get(value)
        if known is not None:
            return known
        if not is_cuda_string(value):
            return value
        return self._strings.setdefault(value, self._number(torch.device(value).index))

    def _number(self, index: int | None) -> torch.device:
        if index is None:
            return self.current
        if self._indexed:
            return torch.device(self._type, index)
        if index not in self._valid:
            check_index(index, self._module.device_count())
            self._valid.add(index)
        return self.current


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
