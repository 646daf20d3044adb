"""Facts about this host, read from /proc without torch."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")

#: Instruction sets that matter to torch's kernels, best first, as /proc/cpuinfo spells them.
SIMD_FLAGS: Final = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve", "asimd")

#: Any of these means arithmetic in float16.
FLOAT16_FLAGS: Final = frozenset({"avx512_fp16", "amx_fp16", "fphp", "asimdhp"})


def _fields(path: Path) -> dict[str, str]:
    """``key: value`` lines, the first of each key; empty if the file cannot be read."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _bytes(value: str | None) -> int:
    """``"123 kB"`` in bytes; 0 if it is missing."""
    return int(value.split()[0]) * 1024 if value else 0


def memory_total() -> int:
    """Physical memory in bytes."""
    return _bytes(_fields(_PROC / "meminfo").get("MemTotal"))


def memory_available() -> int:
    """Memory available without swapping, in bytes."""
    return _bytes(_fields(_PROC / "meminfo").get("MemAvailable"))


def resident_memory() -> int:
    """Memory of this process, in bytes."""
    return _bytes(_fields(_PROC / "self" / "status").get("VmRSS"))


def peak_resident_memory() -> int:
    """Largest memory of this process since it started or since the last reset, in bytes."""
    return _bytes(_fields(_PROC / "self" / "status").get("VmHWM"))


def reset_peak_resident_memory() -> bool:
    """Restart the peak; False if the kernel does not permit it."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def model_name() -> str:
    """The processor's name, or the machine type if the kernel gives no name (ARM)."""
    return _fields(_PROC / "cpuinfo").get("model name") or os.uname().machine


def _flags() -> frozenset[str]:
    fields = _fields(_PROC / "cpuinfo")
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def simd() -> str | None:
    """The best available instruction set in :data:`SIMD_FLAGS`; None if there is none."""
    flags = _flags()
    return next((flag for flag in SIMD_FLAGS if flag in flags), None)


@lru_cache(maxsize=1)
def has_float16() -> bool:
    """Whether the processor multiplies float16 numbers, so that torch's kernels are fast."""
    return bool(_flags() & FLOAT16_FLAGS)
