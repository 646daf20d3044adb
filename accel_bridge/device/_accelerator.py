"""torch.accelerator, which finds devices by itself and would contradict the redirection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from accel_bridge.device._context import Context

#: Answers of a machine without an accelerator.
NO_ACCELERATOR: Final[dict[str, Callable[..., Any]]] = {
    "current_accelerator": lambda check_available=False: None,
    "current_device_idx": lambda: -1,
    "current_device_index": lambda: -1,
    "device_count": lambda: 0,
    "empty_cache": lambda: None,
    "is_available": lambda: False,
    "max_memory_allocated": lambda device_index=None: 0,
    "max_memory_reserved": lambda device_index=None: 0,
    "memory_allocated": lambda device_index=None: 0,
    "memory_reserved": lambda device_index=None: 0,
    "memory_stats": lambda device_index=None: {},
    "reset_accumulated_memory_stats": lambda device_index=None: None,
    "reset_peak_memory_stats": lambda device_index=None: None,
    "set_device_idx": lambda device: None,
    "set_device_index": lambda device: None,
    "synchronize": lambda device=None: None,
}


def redirect_accelerator(context: Context) -> None:
    """Make ``torch.accelerator`` report none, unless torch itself found this device."""
    if _found_by_torch() == context.spec.type:
        return
    for name, answer in NO_ACCELERATOR.items():
        context.answer(torch.accelerator, name, answer)


def _found_by_torch() -> str | None:
    """Type of the device that torch takes for the machine's accelerator."""
    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # how torch 2.6 says that there is none
        return None
    return None if accelerator is None else accelerator.type
