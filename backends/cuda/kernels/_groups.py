"""Where the rows of each expert lie, on the host and in kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import on_device
from accel_bridge.backends.cuda.kernels._launch import blocks

#: Experts whose rows a program looks through at once.
_EXPERTS = 1024


def too_many(splits: Sequence[int]) -> str | None:
    """Why kernels cannot look through the rows of these experts, or None."""
    return f"{len(splits)} experts" if not 0 < len(splits) <= _EXPERTS else None


def ends_of(splits: Sequence[int], device: torch.device) -> torch.Tensor:
    """Where each expert's rows end [e]."""
    return on_device(tuple(accumulate(splits)), torch.int32, device)


def tiles_of(splits: Sequence[int], size: int) -> int:
    """Tiles of ``size`` rows, none of which has rows of two experts."""
    return _tiles(tuple(splits), size)


@lru_cache(maxsize=64)  # the kernels of a layer ask alike
def _tiles(splits: tuple[int, ...], size: int) -> int:
    return sum(blocks(rows, size) for rows in splits)


@triton.jit
def tile_of(ends, tile, experts, SIZE: tl.constexpr, EXPERTS: tl.constexpr):
    """(expert, its first row, its end, the tile's number among the expert's)."""
    place = tl.arange(0, EXPERTS)
    known = place < experts
    end = tl.load(ends + place, mask=known, other=0)
    start = tl.load(ends + place - 1, mask=known & (place > 0), other=0)
    done = tl.cumsum(tl.where(known, (end - start + SIZE - 1) // SIZE, 0), 0)
    before = done <= tile
    expert = tl.sum(before.to(tl.int32), 0)
    first = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    return expert, first, tl.load(ends + expert), tile - tl.max(tl.where(before, done, 0), 0)
