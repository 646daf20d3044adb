"""Which GPUs ``CUDA_VISIBLE_DEVICES`` leaves to a process.

Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from accel_bridge.backends.cuda._nvml import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_names(
    value: str | None, gpus: Sequence[Gpu], known: Collection[str]
) -> tuple[str, ...]:
    """Names of the GPUs (or MIG instances) that CUDA will show.

    As in CUDA, the list ends at the first entry that names no device, and a device named twice
    hides all. Indices are looked up in PCI order, while CUDA puts the fastest GPU first unless
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``: on mixed machines the names may differ, but not the count.

    :param value: the variable; None when it is not set.
    :param known: UUIDs of MIG instances that exist.
    """
    first = _entries(value or "")[0]
    if first.startswith("MIG-"):
        # CUDA uses only one MIG instance in a process, whatever else is listed.
        return (f"MIG instance {first}",) if first in known else ()
    return tuple(gpu.name for gpu in visible_gpus(value, gpus))


def visible_gpus(value: str | None, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The whole GPUs that CUDA will show; see :func:`visible_names`."""
    if value is None:
        return tuple(gpus)
    found: list[Gpu] = []
    for entry in _entries(value):
        gpu = _find(entry, gpus)
        if gpu is None:
            break
        if gpu in found:
            return ()
        found.append(gpu)
    return tuple(found)


def mig_uuids(value: str | None) -> list[str]:
    """The entries that name MIG instances; only the driver knows whether those exist."""
    return [entry for entry in _entries(value or "") if entry.startswith("MIG-")]


def _entries(value: str) -> list[str]:
    return [word.strip() for word in value.split(",")]


def _find(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU for an index or the beginning of a UUID."""
    if entry.isdecimal():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if not entry.startswith("GPU-"):
        return None
    matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None
