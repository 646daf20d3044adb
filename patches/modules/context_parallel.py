"""Context parallelism by gathering keys and values.

Each of the cp ranks holds two chunks of the sequence, one from either end, so that causal work is
balanced: of 2*cp chunks, rank r holds chunks r and 2*cp - 1 - r (megatron/core/utils.py,
get_batch_on_this_cp_rank). Keys and values are gathered and put in order; each query chunk then
sees the keys up to its own end. Llama 3 uses the same scheme (arXiv:2407.21783, section 3.3.2).

Legend: s full sequence, c = s / (2 * cp) chunk, b batch, n heads, g key/value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def chunks_of_rank(rank: int, cp_size: int) -> tuple[int, int]:
    """The two chunk numbers that ``rank`` holds, in its local order."""
    return rank, 2 * cp_size - 1 - rank


def gathered_order(cp_size: int) -> list[int]:
    """For each chunk of the sequence, its place among the chunks gathered rank by rank."""
    held = [chunk for rank in range(cp_size) for chunk in chunks_of_rank(rank, cp_size)]
    return [held.index(chunk) for chunk in range(2 * cp_size)]


class _GatherSequence(torch.autograd.Function):
    """[2c, b, g, d] of every rank -> [s, b, g, d] in sequence order; backward sums and scatters."""

    @staticmethod
    def forward(
        ctx: Any, local: torch.Tensor, group: torch.distributed.ProcessGroup
    ) -> torch.Tensor:
        ctx.group = group
        size = group.size()
        gathered = local.new_empty((size * local.shape[0], *local.shape[1:]))
        torch.distributed.all_gather_into_tensor(gathered, local.contiguous(), group=group)
        chunks = gathered.chunk(2 * size)
        return torch.cat([chunks[place] for place in gathered_order(size)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = gradients
        size = ctx.group.size()
        chunks = gradient.chunk(2 * size)
        held = [chunk for rank in range(size) for chunk in chunks_of_rank(rank, size)]
        by_rank = torch.cat([chunks[chunk] for chunk in held])
        local = by_rank.new_empty((by_rank.shape[0] // size, *by_rank.shape[1:]))
        torch.distributed.reduce_scatter_tensor(local, by_rank, group=ctx.group)
        return local, None


def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    group: torch.distributed.ProcessGroup,
    causal: bool,
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """Attention of the local queries over the whole sequence.

    :param query: [2c, b, n, d], the rank's two chunks.
    :param key: [2c, b, g, d], likewise; so is value.
    :param causal: keys after a chunk's end are left out of the call.
    :param attend: attention of one query chunk [c, b, n, d] over keys and values [e, b, g, d],
        given the row of the local chunk pair at which its queries start; the last query stands at
        the last key when ``causal``. Returns [c, b, n * dv].
    :returns: [2c, b, n * dv].
    """
    size, rank = group.size(), group.rank()
    key_all = _GatherSequence.apply(key, group)  # type: ignore[no-untyped-call]
    value_all = _GatherSequence.apply(value, group)  # type: ignore[no-untyped-call]
    chunk = query.shape[0] // 2
    outputs = []
    for place, number in enumerate(chunks_of_rank(rank, size)):
        end = (number + 1) * chunk if causal else key_all.shape[0]
        start = place * chunk
        outputs.append(attend(query[start : start + chunk], key_all[:end], value_all[:end], start))
    return torch.cat(outputs)
