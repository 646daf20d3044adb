"""Caches of keys and values of one layer after the other: rows by sequence, or pages.

Legend: b sequences of a step, g key heads, d head size, dv of values, t new tokens of a step.
Formats of new tokens: bshd [b, s, g, d], sbhd [s, b, g, d], thd [t, g, d]; caches are bshd.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final

import torch

from .._capturing import captures

_LOG: Final = logging.getLogger("PagedKVCacheManager")
#: A step's sequences and how many tokens are new.
Lengths = OrderedDict[int, int]


class KVCacheManager(ABC):
    """What a cache does; a caller may bring one of its own."""

    def __init__(self) -> None:
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.sequences: Lengths = OrderedDict()

    def reset(self) -> None:
        """Forget the sequences."""
        self.sequences = OrderedDict()

    @abstractmethod
    def allocate_memory(self, layer_number: int) -> None:
        """Make a layer's cache."""

    @abstractmethod
    def pre_step(self, step_dict: Lengths) -> Lengths:
        """Note a step's sequences; returns their lengths with the new tokens."""

    @abstractmethod
    def step(
        self,
        layer_number: int,
        new_k: torch.Tensor,
        new_v: torch.Tensor,
        cu_new_seqlens: torch.Tensor,
        cu_cached_seqlens: torch.Tensor,
        qkv_format: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new tokens; returns its caches."""


class _Cache(KVCacheManager):
    """What both kinds of cache have in common: rows of tokens."""

    def __init__(self, num_heads: int, sizes: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__()
        self.num_heads, self.dtype = num_heads, dtype
        self.head_dim_k, self.head_dim_v = sizes
        #: Each layer's caches as rows of tokens, with one more row, which nobody reads.
        self._rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def _allocate(self, layer_number: int, rows: tuple[int, int]) -> None:
        device = torch.cuda.current_device()
        count = rows[0] * rows[1]
        sizes = (self.head_dim_k, self.head_dim_v)
        keys, values = (
            torch.zeros(count + 1, self.num_heads, size, dtype=self.dtype, device=device)
            for size in sizes
        )
        self._rows[layer_number] = keys, values
        self.cache[layer_number] = (
            keys[:count].unflatten(0, rows),
            values[:count].unflatten(0, rows),
        )

    def _store(
        self,
        layer_number: int,
        new: tuple[torch.Tensor, torch.Tensor],
        cu_new: torch.Tensor,
        cu_cached: torch.Tensor,
        qkv_format: str,
        row: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        """Copy new tokens behind the old ones; what is no token goes to the row nobody reads.

        Nothing here waits for the device or depends on the lengths: a graph may capture it.

        :param row: where (sequence, position) is in the cache's rows.
        """
        sequence, place = places_of(new[0], cu_new, qkv_format)
        counts = cu_new.diff()
        real = place < counts[sequence]
        position = (cu_cached.diff() - counts)[sequence] + place
        for rows, tokens in zip(self._rows[layer_number], new, strict=True):
            flat = tokens if qkv_format == "thd" else tokens.flatten(0, 1)
            last = rows.shape[0] - 1
            target = torch.where(real, row(sequence, position.clamp(min=0)), last)
            rows.index_copy_(0, target, flat.to(rows.dtype))


def places_of(
    tokens: torch.Tensor, cu_new: torch.Tensor, qkv_format: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequence of each row of a step's tokens, and the row's place in it, int64 [rows].

    A place at or behind the sequence's number of new tokens is padding.

    :param tokens: new tokens in one of the formats.
    :param cu_new: cumulative numbers of new tokens, int32 [at least b + 1].
    """
    count = tokens.shape[0] if qkv_format == "thd" else tokens.shape[0] * tokens.shape[1]
    rows = torch.arange(count, device=cu_new.device)
    if qkv_format == "bshd":
        return rows // tokens.shape[1], rows % tokens.shape[1]
    if qkv_format == "sbhd":
        return rows % tokens.shape[1], rows // tokens.shape[1]
    ends = cu_new[1:].long()
    sequence = torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)
    return sequence, rows - cu_new[sequence]


class NonPagedKVCacheManager(_Cache):
    """A row of ``max_seqlen`` tokens for each sequence; rows move when sequences end."""

    def __init__(
        self,
        max_batch_size: int,
        max_seqlen: int,
        num_heads: int,
        head_dim_k: int,
        dtype: torch.dtype,
        head_dim_v: int | None = None,
    ) -> None:
        super().__init__(num_heads, (head_dim_k, head_dim_v or head_dim_k), dtype)
        self.max_batch_size, self.max_seqlen = max_batch_size, max_seqlen
        device = torch.cuda.current_device()
        self.batch_indices = torch.zeros(max_batch_size, dtype=torch.int32, device=device)
        self.need_reindex = True

    def allocate_memory(self, layer_number: int) -> None:
        """[max_batch_size, max_seqlen, g, d] and the same with dv."""
        self._allocate(layer_number, (self.max_batch_size, self.max_seqlen))

    def pre_step(self, step_dict: Lengths) -> Lengths:
        """Sequences that are not in the step have ended; the others advance by one token."""
        before = list(self.sequences)
        kept = [i for i, name in enumerate(before) if name in step_dict]
        ended = [i for i, name in enumerate(before) if name not in step_dict]
        order = [*kept, *ended, *range(len(before), self.max_batch_size)]
        self.batch_indices.copy_(torch.tensor(order, dtype=torch.int32))
        self.sequences = _advanced(self.sequences, step_dict)
        self.need_reindex = set(self.sequences) != set(before)
        return self.sequences

    def step(
        self,
        layer_number: int,
        new_k: torch.Tensor,
        new_v: torch.Tensor,
        cu_new_seqlens: torch.Tensor,
        cu_cached_seqlens: torch.Tensor,
        qkv_format: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Caches [b, max_seqlen, g, d]; with thd b is ``max_batch_size``."""
        # A graph is played in later steps too, whose rows may have to move.
        if self.need_reindex or captures():
            for cache in self.cache[layer_number]:
                cache.copy_(cache.index_select(0, self.batch_indices))
        self._store(
            layer_number,
            (new_k, new_v),
            cu_new_seqlens,
            cu_cached_seqlens,
            qkv_format,
            lambda sequence, position: sequence * self.max_seqlen + position,
        )
        batch = {"bshd": new_k.shape[0], "sbhd": new_k.shape[1]}.get(
            qkv_format, self.max_batch_size
        )
        keys, values = self.cache[layer_number]
        return keys[:batch], values[:batch]


class PagedKVCacheManager(_Cache):
    """Pages of ``page_size`` tokens, given to sequences as they grow."""

    def __init__(
        self,
        total_num_pages: int,
        page_size: int,
        num_heads: int,
        head_dim_k: int,
        dtype: torch.dtype,
        max_batch_size: int,
        max_seqlen: int,
        head_dim_v: int | None = None,
    ) -> None:
        super().__init__(num_heads, (head_dim_k, head_dim_v or head_dim_k), dtype)
        self.total_num_pages, self.page_size = total_num_pages, page_size
        self.max_batch_size, self.max_seqlen = max_batch_size, max_seqlen
        self.max_pages_per_seq = max_seqlen // page_size
        self.page_table = torch.zeros(
            max_batch_size, self.max_pages_per_seq, dtype=torch.int32, device="cuda"
        )
        self.reset()

    def reset(self) -> None:
        """Forget the sequences and free every page."""
        super().reset()
        self.free_pages = list(range(self.total_num_pages))
        self.allocated_pages: defaultdict[int, list[int]] = defaultdict(list)
        self.page_table.fill_(0)

    def allocate_memory(self, layer_number: int) -> None:
        """[total_num_pages, page_size, g, d] and the same with dv."""
        self._allocate(layer_number, (self.total_num_pages, self.page_size))

    def print_cache(self) -> None:
        """Log the pages of every sequence."""
        used = sum(self.get_page_count(name) for name in self.sequences)
        _LOG.debug("pages: %s of %s used", used, self.total_num_pages)
        for name, length in self.sequences.items():
            _LOG.debug("sequence %s: %s tokens in %s", name, length, self.get_page_list(name))

    def get_sequence_count(self) -> int:
        """How many sequences are cached."""
        return len(self.sequences)

    def get_sequence_lengths(self) -> list[int]:
        """Their lengths."""
        return list(self.sequences.values())

    def has_free_page(self) -> bool:
        """Whether a page is left."""
        return bool(self.free_pages)

    def get_page_count(self, seq: int) -> int:
        """How many pages a sequence has."""
        return len(self.allocated_pages[seq])

    def get_page_list(self, seq: int) -> list[int]:
        """A sequence's pages."""
        return list(self.allocated_pages[seq])

    def get_page_table(self, sequences: list[int]) -> torch.Tensor:
        """int32 [max_batch_size, pages]: the pages of ``sequences``, filled up with 0."""
        rows = [self.get_page_list(name) for name in sequences]
        filled = [row + [0] * (self.max_pages_per_seq - len(row)) for row in rows]
        if filled:
            self.page_table[: len(filled)].copy_(torch.tensor(filled, dtype=torch.int32))
        return self.page_table

    def allocate_page(self, seq: int) -> None:
        """Give a sequence one more page.

        :raises RuntimeError: there is none.
        """
        if not self.free_pages:
            raise RuntimeError("KV cache is full!")
        self.allocated_pages[seq].append(self.free_pages.pop(0))

    def pre_step(self, step_dict: Lengths) -> Lengths:
        """Sequences that are not in the step have ended; the others advance by one token."""
        for name in list(self.sequences):
            if name not in step_dict:
                self.free_pages += self.allocated_pages.pop(name)
        self.sequences = _advanced(self.sequences, step_dict)
        for name, length in self.sequences.items():
            while self.get_page_count(name) * self.page_size < min(length, self.max_seqlen):
                self.allocate_page(name)
        self.page_table = self.get_page_table(list(self.sequences))
        return self.sequences

    def step(
        self,
        layer_number: int,
        new_k: torch.Tensor,
        new_v: torch.Tensor,
        cu_new_seqlens: torch.Tensor,
        cu_cached_seqlens: torch.Tensor,
        qkv_format: str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Caches [pages, page_size, g, d]."""

        def row(sequence: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            column = (position // self.page_size).clamp(max=self.max_pages_per_seq - 1)
            page = self.page_table[sequence, column].long()
            return page * self.page_size + position % self.page_size

        new = (new_k, new_v)
        self._store(layer_number, new, cu_new_seqlens, cu_cached_seqlens, qkv_format, row)
        return self.cache[layer_number]


def _advanced(sequences: Lengths, step_dict: Lengths) -> Lengths:
    """Lengths after a step: one token more for known sequences, then the new ones."""
    after = OrderedDict((name, n + 1) for name, n in sequences.items() if name in step_dict)
    for name, count in step_dict.items():
        after.setdefault(name, count)
    return after
