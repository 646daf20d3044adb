"""DataLoader on a device without pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from accel_bridge.device._context import Context

#: Attribute of an iterator over a loader that was asked for pinned memory.
_PINS: Final = "_accel_bridge_pins"


def redirect_loaders(context: Context) -> None:
    """Copy batches where ``pin_memory=True`` does, without the thread that torch starts for it."""
    if not context.spec.pinned_memory:
        context.wrap(_BaseDataLoaderIter, "__init__", _without_pinning)
        context.wrap(_BaseDataLoaderIter, "__next__", _copies)


def _without_pinning(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, loader: Any) -> None:
        pins, loader.pin_memory = loader.pin_memory, False
        try:
            original(self, loader)
        finally:
            loader.pin_memory = pins
        setattr(self, _PINS, pins)

    return __init__


def _copies(original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(self: Any) -> Any:
        batch = original(self)
        return _utils.pin_memory.pin_memory(batch) if getattr(self, _PINS, False) else batch

    return __next__
