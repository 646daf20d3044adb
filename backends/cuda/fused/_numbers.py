"""Small tables of the host that kernels read. Imports no Triton."""

from __future__ import annotations

from functools import lru_cache

import torch


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
