"""Memory of a rehearsed device: every allocation and release in order, and what torch's caching
allocator reserves for them.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

#: Every allocation is a multiple of it: kMinBlockSize of torch's CUDACachingAllocator.
ROUNDING: Final = 512


def rounded(size: int) -> int:
    """Bytes that torch's caching allocator gives for ``size``."""
    return -(-size // ROUNDING) * ROUNDING


class _Reference(weakref.ref[Any]):
    __slots__ = ("index", "key")
    index: int
    key: int


class Ledger:
    """What is on the device, and what ever was.

    :ivar events: number of an allocation, or the bitwise complement of one that is released.
    :ivar sizes: bytes of each allocation, as asked for.
    :ivar marks: each allocation's (step, phase, module, operation).
    :ivar labels: each allocation's class, where it was stated: ``weights``, ``workspace`` ...
    """

    def __init__(self) -> None:
        self.events = array("q")
        self.sizes = array("q")
        self.marks: list[tuple[int, str, str, str]] = []
        self.labels: dict[int, str] = {}
        #: Place in ``events`` where each step begins.
        self.steps: list[int] = []
        self.now = self.peak = 0
        self.peak_event = 0
        self.peak_mark: tuple[int, str, str, str] = (0, "", "", "")
        self._live: dict[int, _Reference] = {}

    def see(self, storage: Any, mark: Callable[[], tuple[int, str, str, str]]) -> None:
        """A tensor's storage: an allocation if it is new."""
        key = storage._cdata
        if key in self._live:
            return
        size = storage.nbytes()
        if size == 0:
            return
        reference = _Reference(storage, self._collected)
        reference.key = key
        reference.index = self.allocate(size, mark())
        self._live[key] = reference

    def allocate(self, size: int, mark: tuple[int, str, str, str], label: str = "") -> int:
        """An allocation of ``size`` bytes; its number."""
        index = len(self.sizes)
        self.sizes.append(size)
        self.marks.append(mark)
        self.events.append(index)
        if label:
            self.labels[index] = label
        self.now += rounded(size)
        if self.now > self.peak:
            self.peak, self.peak_event, self.peak_mark = self.now, len(self.events), mark
        return index

    def release(self, index: int) -> None:
        """The memory is free again."""
        self.events.append(~index)
        self.now -= rounded(self.sizes[index])

    def _collected(self, reference: Any) -> None:
        key, index = reference.key, reference.index
        if self._live.get(key) is reference:
            del self._live[key]
            self.release(index)

    def number(self, storage: Any) -> int | None:
        """Of a storage's allocation."""
        reference = self._live.get(storage._cdata)
        return None if reference is None else reference.index

    def reference(self, number: int) -> _Reference | None:
        """Whose ``index`` is released with the storage of an allocation."""
        return next((one for one in self._live.values() if one.index == number), None)

    def drop(self, storage: Any) -> None:
        """Its memory is free, whatever still names it."""
        reference = self._live.pop(storage._cdata, None)
        if reference is not None:
            self.release(reference.index)

    def resized(self, storage: Any, mark: tuple[int, str, str, str]) -> None:
        """A storage changed its size: the old memory is free, the new one allocated."""
        self.drop(storage)
        self.see(storage, lambda: mark)

    def label(self, storage: Any, what: str) -> None:
        """State the class of what is alive."""
        reference = self._live.get(storage._cdata)
        if reference is not None:
            self.labels.setdefault(reference.index, what)

    def alive(self) -> set[int]:
        """Numbers of the allocations that are not released."""
        return {reference.index for reference in self._live.values()}


#: Classes of memory in the order of a chart, from below.
CLASSES: Final = (
    *("weights", "main gradients", "gradients", "optimizer", "other states"),
    *("workspace", "activations", "communication", "temporaries"),
)


def classify(ledger: Ledger) -> list[str]:
    """The class of each allocation.

    What the training keeps was labelled at its end. The rest is labelled by the operation and the
    phase that made it, and by how long it lived.
    """
    classes = []
    kept = ledger.alive()
    released = {~event: place for place, event in enumerate(ledger.events) if event < 0}
    # A forward pass's tensor that is there when the backward pass begins was kept for it.
    backward = _places_of_backward(ledger)
    born = {event: place for place, event in enumerate(ledger.events) if event >= 0}
    for index, (step, phase, _, operation) in enumerate(ledger.marks):
        if index in ledger.labels:
            classes.append(ledger.labels[index])
        elif operation.startswith("c10d") or "all_gather" in operation:
            classes.append("communication")
        elif index in kept:
            classes.append("other states")
        elif phase == "forward" and step:
            end = released.get(index, len(ledger.events))
            crossed = _crosses(backward, born[index], end)
            classes.append("activations" if crossed else "temporaries")
        elif phase == "backward":
            classes.append("gradients" if operation == "gradient" else "temporaries")
        else:
            classes.append("temporaries")
    return classes


def _places_of_backward(ledger: Ledger) -> list[int]:
    """Places in ``events`` of the allocations of backward passes, ascending."""
    return [
        place
        for place, event in enumerate(ledger.events)
        if event >= 0 and ledger.marks[event][1] == "backward"
    ]


def _crosses(places: list[int], first: int, last: int) -> bool:
    position = bisect_right(places, first)
    return position < len(places) and places[position] < last


def _changes(ledger: Ledger, events: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(number of the allocation, bytes that it adds or gives back) of each event."""
    for event in events:
        index = event if event >= 0 else ~event
        yield index, (1 if event >= 0 else -1) * rounded(ledger.sizes[index])


def composition(ledger: Ledger, classes: list[str], at: int) -> dict[str, int]:
    """Bytes by class after ``at`` events."""
    sums = dict.fromkeys(CLASSES, 0)
    for index, change in _changes(ledger, ledger.events[:at]):
        sums[classes[index]] += change
    return {name: size for name, size in sums.items() if size}


def curve(ledger: Ledger, classes: list[str], first: int) -> list[list[int]]:
    """Bytes of each of :data:`CLASSES` over the events from ``first`` on, at most 400.

    Of each stretch the moment with the most memory is kept.
    """
    number = {name: place for place, name in enumerate(CLASSES)}
    sums = [0] * len(CLASSES)
    rows: list[list[int]] = []
    stretch = max(1, (len(ledger.events) - first) // 400)
    total, most, best = 0, -1, list(sums)
    for place, (index, change) in enumerate(_changes(ledger, ledger.events)):
        sums[number[classes[index]]] += change
        total += change
        if place < first:
            continue
        if total > most:
            most, best = total, list(sums)
        if (place - first) % stretch == stretch - 1:
            rows.append(best)
            most, best = -1, list(sums)
    return rows


def by_module(ledger: Ledger, classes: list[str], at: int) -> dict[str, int]:
    """Bytes of the activations by the module that made them, after ``at`` events."""
    sums: dict[str, int] = {}
    for index, change in _changes(ledger, ledger.events[:at]):
        if classes[index] == "activations":
            module = ledger.marks[index][2]
            sums[module] = sums.get(module, 0) + change
    return {name: size for name, size in sums.items() if size > 0}


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
