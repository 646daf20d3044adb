"""Which values designate a CUDA device, and what they become."""

from __future__ import annotations

from typing import Any

import torch

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
