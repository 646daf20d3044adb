"""The order of chunks under context parallelism, against Megatron's own slicing."""

from __future__ import annotations

import pytest
import torch

from accel_bridge.kernels.context_parallel import chunks_of_rank, gathered_order


def megatron_slice(sequence: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """What a rank gets of [s]: chunks rank and 2 * size - rank - 1 of 2 * size.

    Source: megatron/core/utils.py, get_batch_on_this_cp_rank.
    """
    chunks = sequence.view(2 * size, -1)
    return chunks[torch.tensor([rank, 2 * size - rank - 1])].reshape(-1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_gathered_chunks_come_back_in_sequence_order(size: int) -> None:
    sequence = torch.arange(2 * size * 3)
    parts = [megatron_slice(sequence, rank, size) for rank in range(size)]
    for rank, part in enumerate(parts):
        held = [sequence.chunk(2 * size)[chunk] for chunk in chunks_of_rank(rank, size)]
        assert torch.equal(torch.cat(held), part)
    chunks = torch.cat(parts).chunk(2 * size)
    ordered = torch.cat([chunks[place] for place in gathered_order(size)])
    assert torch.equal(ordered, sequence)
