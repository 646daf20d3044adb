"""torch's caching allocator on a list of allocations: what is reserved, and what is split off.

The rules and numbers are those of ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.11 and 2.13) with
its default settings: sizes rounded to 512 bytes; small requests from segments of 2 MiB; up to
10 MiB from segments of 20 MiB; larger ones from segments of their own, in steps of 2 MiB. The
smallest free block that is large enough serves; it is split if more than 512 bytes (small) or 1 MiB
(large) remain. What is not split off counts as allocated.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from accel_bridge.apps.rehearse.memory import ROUNDING, rounded

MIB: Final = 2**20
SMALL: Final = MIB
SMALL_SEGMENT: Final = 2 * MIB
LARGE_SEGMENT: Final = 20 * MIB
#: From this size on a request gets a segment of its own.
LEAST_OWN: Final = 10 * MIB
STEP: Final = 2 * MIB


class _Block:
    __slots__ = ("free", "next", "number", "previous", "segment", "size", "small")

    def __init__(self, size: int, segment: int, small: bool, number: int) -> None:
        self.size, self.segment, self.small, self.number = size, segment, small, number
        self.previous: _Block | None = None
        self.next: _Block | None = None
        self.free = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Peaks in bytes: ``max_memory_allocated`` and ``max_memory_reserved``."""

    allocated: int
    reserved: int


def simulate(events: Sequence[int], sizes: Sequence[int]) -> Usage:
    """Serve the allocations and releases in their order.

    :param events: number of an allocation, or its bitwise complement when it is released.
    :param sizes: bytes of each, as asked for.
    """
    free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}
    blocks: dict[int, _Block] = {}
    allocated = reserved = most = most_reserved = number = 0

    def put(block: _Block) -> None:
        block.free = True
        insort(free[block.small], (block.size, block.number, block), key=lambda one: one[:2])

    def take(block: _Block) -> None:
        pool = free[block.small]
        place = bisect_left(pool, (block.size, block.number), key=lambda one: one[:2])
        del pool[place]
        block.free = False

    for event in events:
        if event < 0:
            block = blocks.pop(~event)
            allocated -= block.size
            for neighbour in (block.previous, block.next):
                if neighbour is not None and neighbour.free:
                    take(neighbour)
                    block = _merged(block, neighbour)
            put(block)
            continue
        size = max(ROUNDING, rounded(sizes[event]))
        small = size <= SMALL
        pool = free[small]
        place = bisect_left(pool, (size, -1), key=lambda one: one[:2])
        if place < len(pool):
            block = pool[place][2]
            take(block)
        else:
            if small:
                segment = SMALL_SEGMENT
            elif size < LEAST_OWN:
                segment = LARGE_SEGMENT
            else:
                segment = -(-size // STEP) * STEP
            number += 1
            block = _Block(segment, segment, small, number)
            reserved += segment
            most_reserved = max(most_reserved, reserved)
        if block.size - size >= (ROUNDING if small else SMALL + 1):
            number += 1
            rest = _Block(block.size - size, block.segment, small, number)
            block.size = size
            rest.previous, rest.next = block, block.next
            if rest.next is not None:
                rest.next.previous = rest
            block.next = rest
            put(rest)
        blocks[event] = block
        allocated += block.size
        most = max(most, allocated)
    return Usage(most, most_reserved)


def _merged(block: _Block, neighbour: _Block) -> _Block:
    """Two blocks that lie side by side, as one."""
    left, right = (neighbour, block) if neighbour is block.previous else (block, neighbour)
    left.size += right.size
    left.next = right.next
    if left.next is not None:
        left.next.previous = left
    return left
