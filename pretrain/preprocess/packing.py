"""Several conversations in one row, filled as MindSpeed-LLM fills it (``--pack``)."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .encoder import KeyTokens
from .writer import KeyWriter, SpoolSizes


def fill(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which rows go together: indices into ``lengths``, none longer than ``room``.

    Each bin takes the longest that still fits, again and again; of equal lengths the last first.
    """
    by_length: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        by_length.setdefault(length, []).append(index)
    left = sorted(by_length)
    bins = []
    while left:
        free = room
        one: list[int] = []
        while (position := bisect.bisect(left, free)) > 0:
            length = left[position - 1]
            one.append(by_length[length].pop())
            free -= length
            if not by_length[length]:
                left.pop(position - 1)
        bins.append(one)
    return bins


class PackedKeyWriter(KeyWriter):
    """Collects the rows of one key and writes them packed.

    :param length: of a packed row.
    :param padding: what fills it up.
    :param numbered: each row's ids become its number in the packed row, from 1.
    """

    def __init__(
        self,
        prefix: str,
        length: int,
        padding: int,
        numbered: bool,
        resume: Sequence[SpoolSizes] | None = None,
    ) -> None:
        super().__init__(prefix, np.dtype(np.int32), resume=resume, collects=True)
        self._length = length
        self._padding = padding
        self._numbered = numbered

    def _gather(self) -> None:
        """Write the packed rows."""
        (rows,) = self._parts
        tokens = np.fromfile(rows.paths[0], np.int32)
        lengths = np.fromfile(rows.paths[1], np.int32).tolist()
        starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).tolist()
        bins = fill(lengths, self._length - 1)
        packed = np.full((len(bins), self._length), self._padding, np.int32)
        for row, members in zip(packed, bins, strict=True):
            end = 0
            for number, index in enumerate(members, 1):
                begin, end = end, end + lengths[index]
                row[begin:end] = (
                    number if self._numbered else tokens[starts[index] : starts[index + 1]]
                )
        count: npt.NDArray[np.int32] = np.full(len(bins), self._length, np.int32)
        ones = np.ones_like(count)
        self._all.append(KeyTokens(packed.tobytes(), count.tobytes(), ones.tobytes()))
