"""Which implementation serves a call, decided once per call shape, and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Choice:
    """An implementation and the reason for it.

    :param name: what runs, e.g. ``cudnn``.
    :param why: one sentence, with the measurement if that decided.
    """

    name: str
    why: str


#: From this many elements on, fewer passes over memory save more than a Triton kernel costs the
#: host: its launch and the Python of its backward pass take some 100 µs more than torch's.
LARGE: Final = 2**22


@lru_cache(maxsize=16)
def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device, e.g. (9, 0) for Hopper; (0, 0) for another device."""
    if device.type != "cuda":
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
