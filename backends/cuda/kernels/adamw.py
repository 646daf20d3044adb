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

from accel_bridge.backends.cuda.kernels._launch import Quick
from accel_bridge.kernels import AdamWOptions
from accel_bridge.kernels.adamw import write_copies

#: Elements of a program, and those that it holds at a time: eight of each tensor in a thread.
_CHUNK = 2048
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
    scale,
    copies,
    SCALED: tl.constexpr,
    COPIED: tl.constexpr,
    EVEN: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One chunk of a parameter, its gradient, its moments and its copy."""
    owner = tl.load(owners + tl.program_id(0))
    start = tl.load(chunks + tl.program_id(0)).to(tl.int64) * CHUNK
    size = tl.load(sizes + owner)
    if EVEN:
        # Without this a mask may end inside of 16 bytes, and every element is loaded by itself.
        size = tl.multiple_of(size, 4)
    parameter = base + tl.multiple_of(tl.load(places + owner), 4)
    gradient = base + tl.multiple_of(tl.load(places + number + owner), 4)
    first = base + tl.multiple_of(tl.load(places + 2 * number + owner), 4)
    second = base + tl.multiple_of(tl.load(places + 3 * number + owner), 4)
    if COPIED:
        copy = copies + tl.multiple_of(tl.load(places + 4 * number + owner), 8)
    if SCALED:
        factor = tl.load(scale)
    for offset in range(0, CHUNK, BLOCK):
        place = start + offset + tl.arange(0, BLOCK)
        inside = place < size
        p = tl.load(parameter + place, mask=inside, other=0.0)
        g = tl.load(gradient + place, mask=inside, other=0.0)
        m = tl.load(first + place, mask=inside, other=0.0)
        v = tl.load(second + place, mask=inside, other=0.0)
        if SCALED:
            g = g * factor
        m = keep_first * m + take_first * g
        v = keep_second * v + take_second * g * g
        p = decay * p - rate * m / (tl.sqrt_rn(v) * correction + eps)
        tl.store(first + place, m, mask=inside)
        tl.store(second + place, v, mask=inside)
        tl.store(parameter + place, p, mask=inside)
        if COPIED:
            tl.store(copy + place, p.to(copies.dtype.element_ty), mask=inside)


@lru_cache(maxsize=16)
def _layout(
    places: tuple[int, ...], sizes: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor, ...]:
    """``places`` and ``sizes`` on the device, and each program's tensor and chunk [programs].

    :param sizes: elements of each parameter.
    """
    elements = torch.tensor(sizes, device="cpu")
    counts = (elements + _CHUNK - 1) // _CHUNK
    owners = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
    before = (counts.cumsum(0) - counts)[owners]
    chunks = torch.arange(len(owners), device="cpu") - before
    numbers = (
        torch.tensor(places, device="cpu"),
        elements,
        owners.to(torch.int32),
        chunks.to(torch.int32),
    )
    return tuple(one.to(device) for one in numbers)


def _places(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[int, ...] | None:
    """Where tensors begin, in elements from the first; None: the kernel does not take them.

    The host looks at each of what may be thousands of tensors, so it looks by C functions only.
    """
    addresses = tuple(map(torch.Tensor.data_ptr, tensors))
    if (
        {one.dtype for one in tensors} != {dtype}
        or not all(map(torch.Tensor.is_contiguous, tensors))
        or any(one % _ALIGNED for one in addresses)
    ):
        return None
    return tuple((one - addresses[0]) // dtype.itemsize for one in addresses)


def adamw(
    lists: Sequence[Sequence[torch.Tensor]],
    options: AdamWOptions,
    scale: torch.Tensor | None = None,
    copies: Sequence[torch.Tensor] | None = None,
) -> bool:
    """The contract ``adamw``, of float32 tensors without gaps; copies of 16 bits cost no pass.

    :param lists: parameters, gradients and both moments.
    :returns: False if there are other tensors; nothing is done.
    """
    tensors = [one for several in lists for one in several]
    base, sizes = tensors[0], tuple(map(torch.Tensor.numel, lists[0]))
    places = _places(tensors, torch.float32)
    if places is None:
        return False
    written = _places(copies, copies[0].dtype) if copies and copies[0].itemsize == 2 else None
    starts, elements, owners, chunks = _layout(places + (written or ()), sizes, base.device)
    first, second = options.betas
    _step[(owners.numel(),)](
        base,
        starts,
        elements,
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
        base if scale is None else scale,
        copies[0] if copies and written else base,
        SCALED=scale is not None,
        COPIED=bool(written),
        EVEN=not any(one % 4 for one in sizes),
        CHUNK=_CHUNK,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    if not written:
        write_copies(lists[0], copies)
    return True
