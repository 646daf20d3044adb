"""The functions and classes of ``torch.cuda``, answered by the Quipu.

Only what training needs: a name that is left out is an error only when a script calls it.
"""

from __future__ import annotations

import functools
import importlib
import os
import resource
import sys
import time
from typing import Any, NamedTuple

import torch

from quipu_bridge.backend import device_files

#: Bytes of memory on one Quipu.
MEMORY = 2**33


#: The compiled driver, when :func:`register` has loaded it.
_driver: Any = None


@functools.cache
def register() -> None:
    """Make ``quipu`` a device type of torch; its driver is loaded here, and not before."""
    global _driver
    torch.utils.rename_privateuse1_backend("quipu")
    # The driver asks this process how many there are.
    os.environ["QUIPU_DEVICES_HERE"] = str(device_count())
    _driver = importlib.import_module("quipu_bridge._driver")
    torch._register_device_module("quipu", sys.modules[__name__])


class Properties(NamedTuple):
    """What ``get_device_properties`` returns."""

    name: str
    total_memory: int
    multi_processor_count: int


# --- devices: every call has finished when it returns ------------------------------------------


def is_available() -> bool:
    return device_count() > 0


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return len(device_files())


def current_device() -> int:
    return int(_driver.current_device())


def set_device(device: Any) -> None:
    index = device if isinstance(device, int) else torch.device(device).index
    if index is not None and index >= 0:
        _driver.set_device(index)


class device:
    """``with torch.cuda.device(n)``."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.idx = current_device()

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._device)

    def __exit__(self, *error: object) -> None:
        set_device(self._before)


def get_device_name(device: Any = None) -> str:
    return "Quipu"


def get_device_properties(device: Any = None) -> Properties:
    return Properties("Quipu", MEMORY, 1)


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16, torch.float32]


def synchronize(device: Any = None) -> None:
    """Nothing to wait for."""


# --- memory: the process's own, in bytes --------------------------------------------------------


def max_memory_allocated(device: Any = None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_allocated = memory_reserved = max_memory_reserved = max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total memory."""
    return max(0, MEMORY - memory_allocated()), MEMORY


def memory_stats(device: Any = None) -> dict[str, int]:
    keys = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "num_alloc_retries")
    return dict.fromkeys(keys, 0) | {keys[1]: max_memory_allocated()}


def empty_cache() -> None:
    """No cache to empty."""


def reset_peak_memory_stats(device: Any = None) -> None:
    """The system keeps the peak; it cannot be reset."""


# --- random numbers: what computes for the device draws from the host's generator ---------------

# One for each device: a rank asks for its own by index.
default_generators = (torch.default_generator,) * device_count()


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed() -> int:
    return torch.default_generator.initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    torch.default_generator.set_state(new_state)


# --- streams: one, in which everything happens in order -----------------------------------------


class Event:
    """A point in time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self._seconds = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds."""
        return (end_event._seconds - self._seconds) * 1e3


class Stream:
    """The one order of execution."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


class StreamContext:
    """``with torch.cuda.stream(...)``."""

    def __init__(self, stream: Stream | None) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


_STREAM = Stream()


def current_stream(device: Any = None) -> Stream:
    return _STREAM


default_stream = current_stream


def stream(stream: Stream | None) -> StreamContext:
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """There is only one."""
