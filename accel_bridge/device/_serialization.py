"""torch.load: storages that were saved on a CUDA device, or are to be loaded onto one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from accel_bridge.device._context import Context
from accel_bridge.device._devices import InvalidDevice, Side, Sides, is_cuda_string


def redirect_serialization(context: Context) -> None:
    """Restore storages with a CUDA location to the device.

    Every form of ``map_location`` (None, a name, a dict, a callable that declines) ends in
    ``torch.serialization.default_restore_location``.
    """
    context.wrap(
        torch.serialization,
        "default_restore_location",
        lambda original: _restore_location(original, context),
    )
    context.wrap(
        torch.storage._StorageBase, "cuda", lambda original: _storage_cuda(original, context)
    )
    sides = context.sides
    if sides is not None:
        context.wrap(
            torch.storage._StorageBase, "cpu", functools.partial(_storage_cpu, sides=sides)
        )
        context.wrap(
            torch.storage._StorageBase, "clone", functools.partial(_storage_clone, sides=sides)
        )


def _restore_location(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    named, sides = context.devices.translate_named, context.sides

    def default_restore_location(storage: Any, location: str) -> Any:
        try:
            target = named(location)
        except InvalidDevice:  # a file of a machine with more devices
            target = context.devices.current
        result = original(storage, str(target))
        if sides is not None:
            side: Side = "device" if is_cuda_string(location) else "host"
            sides.mark_storage(getattr(result, "_untyped_storage", result), side)
        return result

    return default_restore_location


def _storage_cuda(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """What a callable ``map_location`` calls."""
    devices, sides = context.devices, context.sides

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        target = devices.current if device is None else devices.translate(device)
        result = self.to(device=target, non_blocking=non_blocking)
        return result if sides is None else _moved(self, result, "device", sides)

    return cuda


def _storage_cpu(original: Callable[..., Any], sides: Sides) -> Callable[..., Any]:
    def cpu(self: Any) -> Any:
        return _moved(self, original(self), "host", sides)

    return cpu


def _storage_clone(original: Callable[..., Any], sides: Sides) -> Callable[..., Any]:
    """Also what ``copy.deepcopy`` calls, of a tensor as of a module."""

    def clone(self: Any) -> Any:
        result, side = original(self), sides.of_storage(self)
        if side is not None:
            sides.mark_storage(result, side)
        return result

    return clone


def _moved(source: Any, result: Any, target: Side, sides: Sides) -> Any:
    """As ``Sides.moved``, of storages."""
    if result is source:
        if sides.of_storage(source) == target:
            return source
        result = source.clone()
    sides.mark_storage(result, target)
    return result
