"""What decides which implementation serves a call, without importing Triton."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.process import log


@dataclass(frozen=True, slots=True)
class Choice:
    """An implementation and the reason for it.

    :param name: what runs, e.g. ``cudnn``.
    :param why: one sentence, with the measurement if that decided.
    """

    name: str
    why: str


#: The first Triton with descriptors of tensors.
_DESCRIPTORS: Final = (3, 4)
#: From this many elements on, fewer passes over memory save more than a Triton kernel costs the
#: host: its launch and the Python of its backward pass take some 100 µs more than torch's.
LARGE: Final = 2**22


@lru_cache(maxsize=16)
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device, e.g. (9, 0) for Hopper; (0, 0) for another device."""
    if device.type == "cpu":
        return (0, 0)
    return torch.cuda.get_device_capability(device)


def not_for_triton(*tensors: torch.Tensor | None) -> str | None:
    """Why the Triton kernels cannot take ``tensors``, or None."""
    for tensor in tensors:
        if tensor is not None and tensor.dtype not in (
            torch.bfloat16,
            torch.float16,
            torch.float32,
        ):
            return f"the Triton kernels compute in float32, not {tensor.dtype}"
    return None


@cache
def missing() -> str | None:
    """Why Triton cannot be used here, or None; looks without importing it."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (it comes with PyTorch's CUDA build for Linux)"
    return None


@lru_cache(maxsize=512)
def _kept_on_device(
    numbers: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)


def on_device(numbers: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers of the host for a kernel that reads them; copied once, for the calls that follow.

    What a CUDA graph captures belongs to the graph, and is not kept.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return torch.tensor(numbers, dtype=dtype, device=device)
    return _kept_on_device(numbers, dtype, device)


def may_compile(tensor: torch.Tensor) -> bool:
    """Whether a call may compile: not while a graph is captured, nor in a rehearsal."""
    return not (isinstance(tensor, FakeTensor) or torch.cuda.is_current_stream_capturing())


def without_package(
    distribution: str, module: str, tested: tuple[str, ...], extra: str
) -> str | None:
    """Why an optional package cannot be used, or None; a version that was not measured is told.

    :param module: what is imported, to see whether it can be.
    :param tested: the versions that were measured.
    :param extra: the extra of accel_bridge that installs one of them.
    """
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed"
    if version not in tested:
        reason = f"{distribution} {version} was never measured here ({', '.join(tested)} was)"
        log.warn_once(
            f'{reason}; it is not used. `pip install ".[{extra}]"` in a clone of accel_bridge '
            "installs the one that was"
        )
        return reason
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever its import does to find a compiler or a driver
        log.warn_once(f"{distribution} {version} is not used, it cannot be loaded: {error}")
        return f"{distribution} cannot be loaded: {error}"
    return None


def without_descriptors() -> str | None:
    """Why this Triton has no descriptors of tensors, by which the copy engine reads; or None."""
    # Not by looking into Triton, which would import it.
    version = importlib.metadata.version("triton")
    if tuple(map(int, version.split(".")[:2])) < _DESCRIPTORS:
        return f"Triton {version} has no descriptors of tensors (3.4 has)"
    return None
