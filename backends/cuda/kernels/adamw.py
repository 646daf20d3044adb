"""AdamW of many tensors in one launch.

torch's operator cuts the tensors into pieces so large that the last ones leave most of a GPU idle,
and divides many tensors over several launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import on_device
from accel_bridge.backends.cuda.kernels._launch import Quick
from accel_bridge.kernels import AdamWOptions

#: Elements of a program, and those that it holds at a time: eight of each tensor in a thread.
_CHUNK = 4096
_BLOCK = 1024
_WARPS = 4
#: Bytes that every tensor must begin at a multiple of.
_ALIGNED = 16


@Quick
@triton.jit
def _step(
    base,
    places,
    sizes,
    owners,
    chunks,
    number,
    decay,
    keep_first,
    take_first,
    keep_second,
    take_second,
    rate,
    correction,
    eps,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One chunk of a parameter, its gradient and its moments."""
    owner = tl.load(owners + tl.program_id(0))
    start = tl.load(chunks + tl.program_id(0)).to(tl.int64) * CHUNK
    size = tl.load(sizes + owner)
    parameter = base + tl.multiple_of(tl.load(places + owner), 4)
    gradient = base + tl.multiple_of(tl.load(places + number + owner), 4)
    first = base + tl.multiple_of(tl.load(places + 2 * number + owner), 4)
    second = base + tl.multiple_of(tl.load(places + 3 * number + owner), 4)
    for offset in range(0, CHUNK, BLOCK):
        place = start + offset + tl.arange(0, BLOCK)
        inside = place < size
        p = tl.load(parameter + place, mask=inside, other=0.0)
        g = tl.load(gradient + place, mask=inside, other=0.0)
        m = tl.load(first + place, mask=inside, other=0.0)
        v = tl.load(second + place, mask=inside, other=0.0)
        m = keep_first * m + take_first * g
        v = keep_second * v + take_second * g * g
        p = decay * p - rate * m / (tl.sqrt_rn(v) * correction + eps)
        tl.store(first + place, m, mask=inside)
        tl.store(second + place, v, mask=inside)
        tl.store(parameter + place, p, mask=inside)


@lru_cache(maxsize=16)
def _chunks(sizes: tuple[int, ...], chunk: int, device: torch.device) -> torch.Tensor:
    """Each program's tensor, and the number of its chunk in it [2, programs]."""
    counts = torch.tensor([-(-size // chunk) for size in sizes], device="cpu")
    owners = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
    before = (counts.cumsum(0) - counts)[owners]
    numbers = torch.arange(len(owners), device="cpu") - before
    return torch.stack((owners, numbers)).to(torch.int32).to(device)


def takes(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether :func:`adamw` takes these: plain float32."""
    return all(
        one.dtype is torch.float32 and one.is_contiguous() and not one.data_ptr() % _ALIGNED
        for one in tensors
    )


def adamw(lists: Sequence[Sequence[torch.Tensor]], options: AdamWOptions) -> None:
    """The contract ``adamw``.

    :param lists: parameters, gradients and both moments, whose tensors :func:`takes` takes.
    """
    base = lists[0][0]
    origin = base.data_ptr()
    places = tuple((one.data_ptr() - origin) // 4 for tensors in lists for one in tensors)
    sizes = tuple(one.numel() for one in lists[0])
    owners, chunks = _chunks(sizes, _CHUNK, base.device).unbind()
    first, second = options.betas
    if not owners.numel():
        return
    _step[(owners.numel(),)](
        base,
        on_device(places, torch.int64, base.device),
        on_device(sizes, torch.int64, base.device),
        owners,
        chunks,
        len(sizes),
        1.0 - options.lr * options.weight_decay,
        float(first),
        1.0 - first,
        float(second),
        1.0 - second,
        options.lr / (1.0 - first**options.step),
        (1.0 - second**options.step) ** -0.5,
        float(options.eps),
        CHUNK=_CHUNK,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
