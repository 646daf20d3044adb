"""Packed sequences with padding between them, and split over ranks, on any attention kernel.

Legend: t tokens of this rank, n heads, g key and value heads, d head size, dv of values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

import torch

from accel_bridge.kernels._tensor_cache import TensorCache
from accel_bridge.kernels.attention import AttentionMask, AttentionOptions
from accel_bridge.kernels.context_parallel import (
    Attend,
    Part,
    SequenceSplit,
    chunks_of_rank,
    exchange,
    gather,
    local_heads,
    runs,
)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Where packed sequences are; every tensor is int [sequences + 1] with the leading 0.

    :param queries: cumulative lengths without padding.
    :param keys: the same for keys.
    :param padded_queries: cumulative lengths with the padding behind each sequence; default
        ``queries``. Tokens behind the last sequence are padding as well.
    :param padded_keys: the same for keys.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    padded_queries: torch.Tensor | None = None
    padded_keys: torch.Tensor | None = None

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """All of them, for a cache."""
        return self.queries, self.keys, self.padded_queries, self.padded_keys


class _Side(NamedTuple):
    """Queries or keys on the host: where each sequence starts, its length, and with padding."""

    starts: torch.Tensor
    lengths: torch.Tensor
    room: torch.Tensor


class _Spread(NamedTuple):
    """Sequences and the padding between them, as sequences of their own.

    :param padding: bool [t, 1, 1], True for a query that is padding; None without any.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    padding: torch.Tensor | None


class _Run(NamedTuple):
    """The call for adjacent chunks: the tokens it takes, and its sequences."""

    query_rows: torch.Tensor
    key_rows: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor


_SPREADS: Final[TensorCache[_Spread | None]] = TensorCache()
_PLANS: Final[TensorCache[tuple[_Run, ...]]] = TensorCache()


def packed_attention(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    sequences: Sequences,
) -> torch.Tensor:
    """Attention within each sequence; padding gives zeros.

    :param query: [t, n, d]; key and value likewise with g heads.
    :param options: layout TND; the lengths in it are not read.
    :returns: [t, n, dv].
    """
    lengths = (query.shape[0], key.shape[0])
    spread = _SPREADS.get(sequences.tensors, lengths, lambda: _spread(sequences, *lengths))
    if spread is None:
        spread = _Spread(sequences.queries, sequences.keys, None)
    same = spread.queries is spread.keys
    options = replace(
        options, cu_seqlens_q=spread.queries, cu_seqlens_kv=None if same else spread.keys
    )
    output = cast(torch.Tensor, kernel(query, key, value, options))
    return output if spread.padding is None else output.masked_fill(spread.padding, 0.0)


def packed_context_parallel_attention(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    sequences: Sequences,
    split: SequenceSplit,
) -> torch.Tensor:
    """Attention of this rank's queries over whole sequences, each split as a sequence is.

    :param query: [t, n, d]: of every sequence the rank's two chunks; key and value likewise.
    :param sequences: those of all ranks; lengths with padding are multiples of 2 * ranks.
    :returns: [t, n, dv].
    """
    parts, rows = packed_parts(query, key, value, options, sequences, split)
    outputs = torch.cat([cast(torch.Tensor, kernel(*part)) for part in parts])
    tokens = query.shape[0] * split.neighbours
    whole = outputs.new_zeros(tokens, *outputs.shape[1:]).index_copy(0, rows, outputs)
    return exchange(whole, split, for_heads=False)


def packed_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    sequences: Sequences,
    split: SequenceSplit,
) -> tuple[list[Part], torch.Tensor]:
    """The kernel's calls without any padding, and which rows (after the exchange) they give.

    :raises ValueError: sequences that cannot be split; a window without a causal mask, if split.
    """
    mask = options.mask
    if split.size > 1 and mask.window is not None and not mask.causal:
        raise ValueError("packed sequences over ranks cannot have a window without a causal mask")
    left = None if mask.window is None else mask.window[0]
    lengths = (query.shape[0], key.shape[0])
    state = (split.size, split.held_ranks, mask.causal, left, lengths, query.device)
    plan = _PLANS.get(sequences.tensors, state, lambda: _plan(sequences, split, mask, lengths))
    query, key, value = (exchange(one, split, for_heads=True) for one in (query, key, value))
    key, value = gather(key, split), gather(value, split)
    if options.softmax_offset is not None:
        options = replace(options, softmax_offset=local_heads(options.softmax_offset, split))
    if split.size > 1:
        # Each run's last query stands at the last key that it sees.
        options = replace(options, mask=AttentionMask(causal=mask.causal, window=mask.window))
    parts = [
        Part(
            query.index_select(0, run.query_rows),
            key.index_select(0, run.key_rows),
            value.index_select(0, run.key_rows),
            replace(options, cu_seqlens_q=run.queries, cu_seqlens_kv=run.keys),
        )
        for run in plan
    ]
    rows = [run.query_rows for run in plan]
    return parts, rows[0] if len(rows) == 1 else torch.cat(rows)


def _side(lengths: torch.Tensor, padded: torch.Tensor | None) -> _Side:
    ends = lengths.to("cpu", torch.int64)
    bounds = ends if padded is None else padded.to("cpu", torch.int64)
    return _Side(bounds[:-1], ends.diff(), bounds.diff())


def _spread(sequences: Sequences, tokens_q: int, tokens_k: int) -> _Spread | None:
    """None if the sequences fill the tokens without padding."""
    queries = _side(sequences.queries, sequences.padded_queries)
    keys = _side(sequences.keys, sequences.padded_keys)
    sides = ((queries, tokens_q), (keys, tokens_k))
    if all(_is_tight(side, tokens) for side, tokens in sides):
        return None
    device = sequences.queries.device
    bounds = [_bounds(side, tokens).to(device) for side, tokens in sides]
    # Sequences have even numbers, the padding behind them odd ones.
    place = torch.arange(tokens_q, device=device)
    number = torch.searchsorted(bounds[0][1:].contiguous(), place, right=True)
    return _Spread(bounds[0], bounds[1], (number % 2 == 1)[:, None, None])


def _is_tight(side: _Side, tokens: int) -> bool:
    return torch.equal(side.lengths, side.room) and int(side.room.sum()) == tokens


def _bounds(side: _Side, tokens: int) -> torch.Tensor:
    """Cumulative lengths of sequences and paddings by turns: int32 [2 * sequences + 1]."""
    ends = torch.stack((side.starts, side.starts + side.lengths), dim=1).flatten()
    return torch.cat((ends, torch.tensor([tokens]))).to(torch.int32)


def _plan(
    sequences: Sequences, split: SequenceSplit, mask: AttentionMask, tokens: tuple[int, int]
) -> tuple[_Run, ...]:
    """Which tokens the kernel's calls take; read from the device once for all layers."""
    queries = _side(sequences.queries, sequences.padded_queries)
    keys = queries
    if sequences.keys is not sequences.queries or (
        sequences.padded_keys is not sequences.padded_queries
    ):
        keys = _side(sequences.keys, sequences.padded_keys)
    if split.size > 1:
        for side in (queries, keys):
            if bool((side.room % (2 * split.size)).any()):
                raise ValueError(
                    f"lengths of packed sequences {side.room.tolist()} must be multiples of "
                    f"{2 * split.size} with {split.size} context parallel ranks"
                )
    device = sequences.queries.device
    held = [number for rank in split.held_ranks for number in chunks_of_rank(rank, split.size)]
    parts = []
    for first, last in runs(sorted(held)):
        whole = last - first + 1 == 2 * split.size
        chunk = queries.room // (2 * split.size)
        start = torch.zeros_like(chunk) if whole else chunk * first
        end = queries.lengths if whole else torch.minimum(chunk * (last + 1), queries.lengths)
        start = torch.minimum(start, end)
        low, high = torch.zeros_like(start), keys.lengths
        if mask.causal and not whole:
            high = torch.minimum(end, keys.lengths)
            if mask.window is not None and mask.window[0] is not None:
                low = torch.minimum((start - mask.window[0]).clamp(min=0), high)
        # A sequence without queries here needs no keys.
        high = torch.where(end > start, high, low)
        query_rows = _rows(queries, start, end, split.size, tokens[0], split.held_ranks.start)
        key_rows = _rows(keys, low, high, split.size, tokens[1], 0)
        parts.append(
            _Run(
                query_rows.to(device),
                key_rows.to(device),
                _cumulative(end - start).to(device),
                _cumulative(high - low).to(device),
            )
        )
    return tuple(parts)


def _cumulative(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def _rows(
    side: _Side, start: torch.Tensor, end: torch.Tensor, size: int, tokens: int, first_rank: int
) -> torch.Tensor:
    """Where the tokens ``start`` to ``end`` of each sequence are, ranks behind one another.

    :param tokens: of one rank.
    :param first_rank: rank of the first token.
    """
    counts = end - start
    sequence = torch.repeat_interleave(torch.arange(len(counts)), counts)
    skipped = (counts.cumsum(0) - counts)[sequence]
    place = torch.arange(len(sequence)) - skipped + start[sequence]
    if size == 1:
        return side.starts[sequence] + place
    chunk = (side.room // (2 * size)).clamp(min=1)[sequence]
    number = place // chunk
    rank = torch.minimum(number, 2 * size - 1 - number)
    second = torch.where(number < size, 0, chunk)
    local = side.starts[sequence] // size + second + place - number * chunk
    return (rank - first_rank) * tokens + local
