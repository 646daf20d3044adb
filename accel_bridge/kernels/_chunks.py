"""Chunks of a sequence, and how much of a state is left from one position to another.

Legend: b batch, s sequence length, c chunks, l chunk length, g groups, r heads of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

#: l: products inside a chunk cost s l, those with states s n p / l.
CHUNK: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Decays between positions, each a factor of 0 to 1; 0 between different sequences.

    :param within: [b, c, g, r, l, l]: from position j (last) to a later position i of its chunk.
    :param to_end: [b, c, l, g, r]: from a position to the end of its chunk.
    :param from_start: [b, c, l, g, r]: from the end of the chunk before to a position.
    :param between: [b, g, r, c + 1, c + 1]: from the end of chunk j (last) to the end of chunk i;
        chunk 0 is what was before the first one.
    """

    within: torch.Tensor
    to_end: torch.Tensor
    from_start: torch.Tensor
    between: torch.Tensor


def chunked(tensor: torch.Tensor) -> torch.Tensor:
    """[b, s, ...] as [b, c, l, ...], filled up with zeros."""
    missing = -tensor.shape[1] % CHUNK
    if missing:
        tensor = functional.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, missing))
    chunks: torch.Tensor = tensor.unflatten(1, (-1, CHUNK))
    return chunks


def whole(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """[b, c, l, ...] as [b, s, ...], without what it was filled up with."""
    return tensor.flatten(1, 2)[:, :length]


def segments(
    log_decay: torch.Tensor, ids: torch.Tensor | None, before: torch.Tensor | None
) -> Segments:
    """The decays of a sequence.

    :param log_decay: [b, s, g, r], float32 or float64.
    :param ids: [b, s], numbers of the sequences that are packed; None for one sequence.
    :param before: [b], the sequence that the state before the first position belongs to.
    """
    sums = chunked(log_decay).cumsum(2)  # [b, c, l, g, r]
    last = sums[:, :, -1:]
    to_end, from_start = (last - sums).exp(), sums.exp()
    by_head = sums.permute(0, 1, 3, 4, 2)
    within = _lower(by_head.unsqueeze(-1) - by_head.unsqueeze(-2))
    # Only what lies between is summed: differences of long sums would be less exact.
    totals = functional.pad(last.squeeze(2), (0, 0, 0, 0, 1, 0)).permute(0, 2, 3, 1)
    totals = totals.unsqueeze(-1).expand(*totals.shape, totals.shape[-1])
    between = _lower(totals.tril(-1).cumsum(-2))
    if ids is None or before is None:
        return Segments(within, to_end, from_start, between)
    # What fills up the last chunk belongs to the last sequence.
    filled = torch.cat((ids, ids[:, -1:].expand(-1, -ids.shape[1] % CHUNK)), 1)
    own = filled.unflatten(1, (-1, CHUNK))
    at_end = torch.cat((before.unsqueeze(1), own[:, :, -1]), 1)
    return Segments(
        within * (own.unsqueeze(-1) == own.unsqueeze(-2))[:, :, None, None],
        to_end * (own == at_end[:, 1:, None])[..., None, None],
        from_start * (own == at_end[:, :-1, None])[..., None, None],
        between * (at_end.unsqueeze(-1) == at_end.unsqueeze(-2))[:, None, None],
    )


def _lower(exponents: torch.Tensor) -> torch.Tensor:
    """``exp`` on and below the diagonal, zeros above it."""
    size = exponents.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=exponents.device).triu(1)
    return exponents.masked_fill(above, -torch.inf).exp()
