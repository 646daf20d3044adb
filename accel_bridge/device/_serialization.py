"""torch.load: storages that were saved on a CUDA device, or are to be loaded onto one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.serialization

from accel_bridge.device._context import Context
from accel_bridge.device._devices import InvalidDevice


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


def _restore_location(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    named = context.devices.translate_named

    def default_restore_location(storage: Any, location: str) -> Any:
        try:
            target = named(location)
        except InvalidDevice:  # a file of a machine with more devices
            target = context.devices.current
        return original(storage, str(target))

    return default_restore_location


def _storage_cuda(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """What a callable ``map_location`` calls."""
    devices = context.devices

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        target = devices.current if device is None else devices.translate(device)
        return self.to(device=target, non_blocking=non_blocking)

    return cuda
