"""The functions of ``torch.cuda``, answered by the host.

Arguments that name a device come as the script wrote them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from accel_bridge.backends.cpu import _host
from accel_bridge.backends.cpu._streams import Event, ExternalStream, Stream, StreamContext
from accel_bridge.backends.cpu._variables import DEVICES
from accel_bridge.device import check_index
from accel_bridge.device.backend import local_world_size

__all__ = ["Event", "ExternalStream", "Stream", "StreamContext"]

_STREAM: Final = Stream()
_NAME: Final = "CPU (accel_bridge)"
_current_device = 0
#: Where launchers say which process of this machine this is; some do not say how many there are.
_LOCAL_RANKS: Final = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What ``get_device_properties`` returns.

    :param total_memory: in bytes: this process's share of one half of the physical memory; the
        other half is the host's. Scripts size tensors by it.
    :param multi_processor_count: cores this process may run on.
    """

    name: str
    total_memory: int
    multi_processor_count: int


# --- device -----------------------------------------------------------------------------------


def is_available() -> bool:
    """The host is always there."""
    return True


def is_initialized() -> bool:
    """The host needs no initialisation."""
    return True


def device_count() -> int:
    """One device for each process of this machine, as on a machine with accelerators."""
    ranks = [os.environ.get(name, "") for name in _LOCAL_RANKS]
    counted = [int(rank) + 1 for rank in ranks if rank.isdecimal()]
    return max(local_world_size(), DEVICES.read(), *counted, 1)


def current_device() -> int:
    """Number of the device that :func:`set_device` chose."""
    return _current_device


def set_device(device: Any) -> None:
    """Remember the number of a device: an int, ``cuda:N`` or ``torch.device("cuda", N)``.

    A device without a number changes nothing.

    :raises InvalidDevice: there is no such device.
    """
    global _current_device
    index = _index(device)
    if index is not None:
        _current_device = index


def _index(device: Any) -> int | None:
    """The number in a designation, which must be that of a device; None without one."""
    if device is None or isinstance(device, torch.Tensor):
        return None
    index = device if isinstance(device, int) else torch.device(device).index
    if index is None or index < 0:
        return None
    check_index(index, device_count())
    return index


class device:
    """``with torch.cuda.device(n)``: the host stays the host."""

    def __init__(self, device: Any) -> None:
        _index(device)
        self.idx = _current_device

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class device_of(device):
    """``with torch.cuda.device_of(tensor)``."""

    def __init__(self, obj: Any) -> None:
        super().__init__(None if isinstance(obj, torch.Tensor) else obj)


def get_device_name(device: Any = None) -> str:
    """No vendor's name: programs take the AMD of a processor for a GPU that runs ROCm."""
    _index(device)
    return _NAME


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name, memory and cores."""
    _index(device)
    return DeviceProperties(
        name=_NAME,
        total_memory=_host.memory_total() // (2 * device_count()),
        multi_processor_count=_host.cores(),
    )


def get_arch_list() -> list[str]:
    """No CUDA architecture."""
    return []


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """All devices are the host."""
    return True


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """torch computes bfloat16 on every CPU."""
    return True


def synchronize(device: Any = None) -> None:
    """Nothing to wait for."""
    _index(device)


# --- health -----------------------------------------------------------------------------------


def utilization(device: Any = None) -> int:
    """Load of the machine over the last minute, in percent of its cores."""
    return min(100, round(100 * os.getloadavg()[0] / (os.cpu_count() or 1)))


def temperature(device: Any = None) -> int:
    """Not measured: 0."""
    return 0


def power_draw(device: Any = None) -> int:
    """Not measured: 0."""
    return 0


def clock_rate(device: Any = None) -> int:
    """Not measured: 0."""
    return 0


# --- memory: the process's resident memory ----------------------------------------------------


def empty_cache() -> None:
    """No cache to empty."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Available and physical memory of the host, in bytes."""
    _index(device)
    return _host.memory_available(), _host.memory_total()


def device_memory_used(device: Any = None) -> int:
    """Memory in use on the host, in bytes."""
    return _host.memory_total() - _host.memory_available()


def memory_usage(device: Any = None) -> int:
    """Memory in use on the host, in percent."""
    return round(100 * device_memory_used() / max(1, _host.memory_total()))


def memory_allocated(device: Any = None) -> int:
    """Resident memory of this process, in bytes."""
    return _host.resident_memory()


def max_memory_allocated(device: Any = None) -> int:
    """Peak resident memory of this process, in bytes."""
    return _host.peak_resident_memory()


memory_reserved = memory_cached = memory_allocated
max_memory_reserved = max_memory_cached = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Restart the peak where the kernel permits it."""
    _host.reset_peak_resident_memory()


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Nothing is accumulated."""


def memory_stats(device: Any = None) -> dict[str, int]:
    """The keys of ``torch.cuda.memory_stats``; sizes are resident memory, counts are 0."""
    current, peak = memory_allocated(), max_memory_allocated()
    stats = dict.fromkeys(("num_alloc_retries", "num_ooms", "num_sync_all_streams"), 0)
    for quantity in ("allocation", "segment", "active", "inactive_split"):
        for measure in ("current", "peak", "allocated", "freed"):
            stats[f"{quantity}.all.{measure}"] = 0
    for quantity in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        stats[f"{quantity}.all.current"] = current
        stats[f"{quantity}.all.peak"] = peak
        stats[f"{quantity}.all.allocated"] = peak
        stats[f"{quantity}.all.freed"] = peak - current
    stats["inactive_split_bytes.all.current"] = stats["inactive_split_bytes.all.peak"] = 0
    return stats


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Resident memory in one line."""
    mebibyte = 2**20
    return (
        f"host memory of this process: {memory_allocated() / mebibyte:.0f} MiB, "
        f"peak {max_memory_allocated() / mebibyte:.0f} MiB"
    )


def memory_snapshot(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    """The host's allocator keeps no record of its segments."""
    return []


# --- random generators: torch.default_generator serves as every device's ----------------------


class _Generators(Sequence[torch.Generator]):
    """As many entries as devices, all ``torch.default_generator``."""

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def _all(self) -> tuple[torch.Generator, ...]:
        return (torch.default_generator,) * device_count()

    def __len__(self) -> int:
        return device_count()


default_generators: Final[Sequence[torch.Generator]] = _Generators()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of the generator, as a byte tensor."""
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set the state of the generator."""
    torch.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """One state for each device."""
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the state of the generator to that of this process's device."""
    states = list(new_states)
    set_rng_state(states[min(_current_device, len(states) - 1)])


def manual_seed(seed: int) -> None:
    """Seed the generator."""
    torch.default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the generator with a random number."""
    torch.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed that was last set."""
    return torch.default_generator.initial_seed()


# --- streams ----------------------------------------------------------------------------------


def current_stream(device: Any = None) -> Stream:
    """The one stream."""
    return _STREAM


default_stream = current_stream


def set_stream(stream: Stream | None) -> None:
    """There is only one stream."""


def stream(stream: Stream | None) -> StreamContext:
    """``with torch.cuda.stream(...)``."""
    return StreamContext(stream)
