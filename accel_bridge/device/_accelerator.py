"""torch.accelerator, which finds devices by itself: it answers as torch.cuda does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from accel_bridge.device._context import Context

#: Name in torch.accelerator -> name in torch.cuda that answers it.
SAME_IN_CUDA: Final = {
    "current_device_idx": "current_device",
    "current_device_index": "current_device",
    "current_stream": "current_stream",
    "device_count": "device_count",
    "empty_cache": "empty_cache",
    "get_memory_info": "mem_get_info",
    "is_available": "is_available",
    "max_memory_allocated": "max_memory_allocated",
    "max_memory_reserved": "max_memory_reserved",
    "memory_allocated": "memory_allocated",
    "memory_reserved": "memory_reserved",
    "memory_stats": "memory_stats",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "set_device_idx": "set_device",
    "set_device_index": "set_device",
    "set_stream": "set_stream",
    "synchronize": "synchronize",
}
#: What else torch.accelerator has, with its answer.
OTHERS: Final[dict[str, Callable[..., Any]]] = {
    "current_accelerator": lambda check_available=False: torch.device("cuda"),
    "empty_host_cache": lambda: None,
}


def redirect_accelerator(context: Context) -> None:
    """Make ``torch.accelerator`` agree with torch.cuda, unless torch itself found this device."""
    if _found_by_torch() == context.spec.type:
        return
    for name, cuda_name in SAME_IN_CUDA.items():
        context.answer(torch.accelerator, name, _as_in_cuda(cuda_name))
    for name, answer in OTHERS.items():
        context.answer(torch.accelerator, name, answer)


def _as_in_cuda(name: str) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return getattr(torch.cuda, name)(*args, *kwargs.values())

    return answer


def _found_by_torch() -> str | None:
    """Type of the device that torch takes for the machine's accelerator."""
    try:
        accelerator = torch.accelerator.current_accelerator()
    except RuntimeError:  # how torch 2.6 says that there is none
        return None
    return None if accelerator is None else accelerator.type
