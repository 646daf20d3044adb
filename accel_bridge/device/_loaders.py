"""DataLoader on a device without pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from accel_bridge.device._context import Context


def redirect_loaders(context: Context) -> None:
    """Make ``pin_memory=True`` a no-op where page-locked memory does not exist.

    Otherwise torch would start a thread for it, or warn in every epoch.
    """
    if not context.spec.pinned_memory:
        context.wrap(DataLoader, "__init__", _without_pinning)


def _without_pinning(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.pin_memory = False

    return __init__
