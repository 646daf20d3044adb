"""Packed sequences under context parallelism."""

from __future__ import annotations

import torch


def thd_get_partitioned_indices(
    cu_seqlens: torch.Tensor, total_tokens: int, world_size: int, rank: int
) -> torch.Tensor:
    """The tokens of one rank: of every sequence the chunks ``rank`` and ``-1 - rank``.

    Each sequence is cut into 2 * world_size chunks, so that every rank gets as much of the causal
    triangle. Nothing is read back from the device.

    :param cu_seqlens: [sequences + 1], int32: where sequences begin; each length is divisible by
        2 * world_size.
    :param total_tokens: of all sequences together.
    :param world_size: how many ranks.
    :param rank: which one.
    :returns: [total_tokens / world_size], int32, on cu_seqlens' device.
    """
    starts = cu_seqlens // world_size
    token = torch.arange(
        total_tokens // world_size, dtype=cu_seqlens.dtype, device=cu_seqlens.device
    )
    sequence = torch.searchsorted(starts, token, right=True) - 1
    start = starts[sequence]
    chunk = (starts[sequence + 1] - start) // 2
    inside = token - start
    # The rank's second chunk follows 2 * world_size - 2 - 2 * rank others after its first.
    skipped = torch.where(inside < chunk, rank, 2 * world_size - 2 - rank) * chunk
    return (start * world_size + skipped + inside).to(torch.int32)
