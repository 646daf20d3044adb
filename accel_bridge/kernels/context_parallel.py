"""Attention over a sequence that is split over ranks, on any kernel of the contract ``attention``.

Of 2 * cp chunks, rank r holds chunks r and 2 * cp - 1 - r, one from either end, so that causal
work is balanced. Keys and values are gathered and put in order; each run of adjacent query chunks
then sees the keys up to its own end (Llama 3, arXiv:2407.21783, section 3.3.2). Alternatively, or
within a smaller group of neighbours, ranks exchange tokens for heads (DeepSpeed Ulysses,
arXiv:2309.14509). Packed sequences are split one by one: see :mod:`_packed_split`.

At the end: the kernel called in another layout, which a plugin's flags may choose.

Legend: cp ranks, s full sequence, l = s / cp tokens held by a rank, b batch, n heads, g key and
value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, cast

import torch
import torch.distributed as dist

from accel_bridge.kernels.attention import AttentionMask, AttentionOptions, AttentionResult, Layout

#: A kernel of the contract ``attention``.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, AttentionOptions], AttentionResult]


@dataclass(frozen=True, slots=True)
class SequenceSplit:
    """How a sequence is split over ranks.

    With both groups, neighbours form the groups of ``heads``: rank r of all is ``r % a`` in its
    group of a neighbours, and ``r // a`` in ``keys``.

    :param keys: group in which keys and values are gathered.
    :param heads: group in which tokens are exchanged for heads; needs heads, and key heads, that
        are a multiple of its size.
    """

    keys: dist.ProcessGroup | None = None
    heads: dist.ProcessGroup | None = None

    @property
    def neighbours(self) -> int:
        """Ranks that exchange tokens for heads."""
        return 1 if self.heads is None else self.heads.size()

    @property
    def size(self) -> int:
        """All ranks."""
        return self.neighbours * (1 if self.keys is None else self.keys.size())

    @property
    def rank(self) -> int:
        """This rank among all."""
        neighbour = 0 if self.heads is None else self.heads.rank()
        return self.held_ranks.start + neighbour

    @property
    def held_ranks(self) -> range:
        """The ranks whose tokens are here after the exchange."""
        first = 0 if self.keys is None else self.keys.rank() * self.neighbours
        return range(first, first + self.neighbours)


class Part(NamedTuple):
    """One call of the kernel: some of the local queries over the keys that they may see."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: AttentionOptions


def chunks_of_rank(rank: int, cp_size: int) -> tuple[int, int]:
    """The two chunk numbers that ``rank`` holds, in its local order."""
    return rank, 2 * cp_size - 1 - rank


def gathered_order(cp_size: int) -> list[int]:
    """For each chunk of the sequence, its place among the chunks gathered rank by rank."""
    held = [chunk for rank in range(cp_size) for chunk in chunks_of_rank(rank, cp_size)]
    return [held.index(chunk) for chunk in range(2 * cp_size)]


class _Gather(torch.autograd.Function):
    """[l, ...] of every rank -> [cp * l, ...] rank by rank; backward sums and scatters."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        gathered = local.new_empty((group.size() * local.shape[0], *local.shape[1:]))
        dist.all_gather_into_tensor(gathered, local.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradients[0].contiguous()
        local = gradient.new_empty((gradient.shape[0] // ctx.group.size(), *gradient.shape[1:]))
        dist.reduce_scatter_tensor(local, gradient, group=ctx.group)
        return local, None


class _Exchange(torch.autograd.Function):
    """Tokens for heads: [l, .., n, d] of each of a ranks <-> [a * l, .., n / a, d]."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, group: dist.ProcessGroup, for_heads: bool
    ) -> torch.Tensor:
        ctx.group, ctx.for_heads = group, for_heads
        return _exchange(tensor, group, for_heads)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _exchange(gradients[0], ctx.group, not ctx.for_heads), None, None


def _exchange(tensor: torch.Tensor, group: dist.ProcessGroup, for_heads: bool) -> torch.Tensor:
    size = group.size()
    if for_heads:
        sent = torch.movedim(tensor.unflatten(-2, (size, -1)), -3, 0).contiguous()
    else:
        sent = tensor.contiguous().unflatten(0, (size, -1))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    if for_heads:
        return received.flatten(0, 1)
    return torch.movedim(received, 0, -3).flatten(-3, -2)


def gather(local: torch.Tensor, split: SequenceSplit) -> torch.Tensor:
    """The tokens of all ranks, rank by rank."""
    if split.keys is None or split.keys.size() == 1:
        return local
    gathered: torch.Tensor = _Gather.apply(local, split.keys)
    return gathered


def exchange(tensor: torch.Tensor, split: SequenceSplit, for_heads: bool) -> torch.Tensor:
    """Tokens for heads, or back.

    :raises ValueError: heads that do not divide.
    """
    if split.heads is None or split.neighbours == 1:
        return tensor
    if for_heads and tensor.shape[-2] % split.neighbours:
        raise ValueError(
            f"{tensor.shape[-2]} heads cannot be exchanged over {split.neighbours} ranks"
        )
    exchanged: torch.Tensor
    exchanged = _Exchange.apply(tensor, split.heads, for_heads)
    return exchanged


def local_heads(of_heads: torch.Tensor, split: SequenceSplit, dim: int = 0) -> torch.Tensor:
    """This rank's part of something that each head has."""
    if split.heads is None or of_heads.shape[dim] == 1:
        return of_heads
    return of_heads.chunk(split.neighbours, dim)[split.heads.rank()]


def context_parallel_attention(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    split: SequenceSplit,
) -> torch.Tensor:
    """Attention of this rank's queries over the whole sequence.

    :param query: [l, b, n, d], the rank's two chunks.
    :param key: [l, b, g, d], likewise; so is value.
    :param options: those of the whole sequence, layout SBHD, without ``return_lse``. An explicit
        mask or a bias has this rank's rows and all columns: [.., l or 1, s].
    :returns: [l, b, n, dv].
    """
    parts, order = split_parts(query, key, value, options, split)
    outputs = [_output(kernel(*part)) for part in parts]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if order is not None:
        chunks = output.chunk(len(order))
        output = torch.cat([chunks[place] for place in order])
    return exchange(output, split, for_heads=False)


def _output(result: AttentionResult) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result[0]


def split_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    split: SequenceSplit,
) -> tuple[list[Part], list[int] | None]:
    """The kernel's calls, and the order of the output's chunks; None if they are in order."""
    if split.neighbours > 1 and _has_matrix(options):
        raise ValueError("a mask or bias matrix cannot be combined with an exchange of heads")
    query, key, value = (exchange(one, split, for_heads=True) for one in (query, key, value))
    if options.softmax_offset is not None:
        options = replace(options, softmax_offset=local_heads(options.softmax_offset, split))
    key, value = (_in_order(gather(one, split), split.size) for one in (key, value))
    held = [number for rank in split.held_ranks for number in chunks_of_rank(rank, split.size)]
    mask = options.mask
    if not mask.causal and mask.window is None:
        return [Part(query, key, value, options)], None
    order = sorted(range(len(held)), key=held.__getitem__)
    if order == list(range(len(held))):
        back = None
    else:
        chunks = query.chunk(len(held))
        query = torch.cat([chunks[place] for place in order])
        back = [order.index(place) for place in range(len(held))]
    size = query.shape[0] // len(held)
    parts, begin = [], 0
    for first, last in runs(sorted(held)):
        rows = range(begin, begin + (last - first + 1) * size)
        begin = rows.stop
        parts.append(_part(query, key, value, options, rows, first * size))
    return parts, back


def runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of adjacent numbers."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last


def _part(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    rows: range,
    start: int,
) -> Part:
    """The call for ``rows`` of the local queries, which stand at ``start`` of the sequence."""
    end = start + len(rows)
    left, right = options.mask.window or (None, None)
    if options.mask.causal:
        right = 0
    low = 0 if left is None else max(0, start - left)
    high = key.shape[0] if right is None else min(key.shape[0], end + right)
    # The kernel counts from the last key, which may stand beyond the last query.
    beyond = high - end
    window = None
    if options.mask.window is not None:
        window = (
            None if left is None else left + beyond,
            None if right is None else right - beyond,
        )
    columns = slice(low, high)
    mask = AttentionMask(
        causal=options.mask.causal, window=window, masked=_cut(options.mask.masked, rows, columns)
    )
    options = replace(options, mask=mask, bias=_cut(options.bias, rows, columns))
    return Part(query[rows.start : rows.stop], key[columns], value[columns], options)


def _cut(matrix: torch.Tensor | None, rows: range, columns: slice) -> torch.Tensor | None:
    """Some rows and columns of [.., l or 1, s or 1]."""
    if matrix is None:
        return None
    if matrix.shape[-2] > 1:
        matrix = matrix[..., rows.start : rows.stop, :]
    return matrix if matrix.shape[-1] == 1 else matrix[..., columns]


def _has_matrix(options: AttentionOptions) -> bool:
    return options.mask.masked is not None or options.bias is not None


def _in_order(gathered: torch.Tensor, size: int) -> torch.Tensor:
    """Chunks gathered rank by rank, in the sequence's order."""
    chunks = gathered.chunk(2 * size)
    return torch.cat([chunks[place] for place in gathered_order(size)])


#: Dimensions that turn [s, b, n, d] into a layout, before heads and their size are merged.
_FROM_SBHD: Final = {
    "SBHD": (0, 1, 2, 3),
    "SBH": (0, 1, 2, 3),
    "BSHD": (1, 0, 2, 3),
    "BSH": (1, 0, 2, 3),
    "BNSD": (1, 2, 0, 3),
}
#: Dimensions that turn a layout with separate heads back into [s, b, n, d].
_TO_SBHD: Final = {"SBHD": (0, 1, 2, 3), "BSHD": (1, 0, 2, 3), "BNSD": (2, 0, 1, 3)}


def attend_in(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """query [sq, b, n, d], key and value [sk, b, g, d] -> [sq, b, n * dv].

    :param options: hold the layout that the kernel is called in, and ``heads``.
    """
    sq, batch = query.shape[:2]
    layout = options.layout
    tensors = [part.permute(_FROM_SBHD[layout]) for part in (query, key, value)]
    if layout in ("SBH", "BSH"):
        # Contiguous, as the scripts' own layouts are: a view with gaps is not SBH.
        tensors = [part.flatten(-2).contiguous() for part in tensors]
    output = cast(torch.Tensor, kernel(tensors[0], tensors[1], tensors[2], options))
    if layout in ("SBH", "BSH"):
        return output if layout == "SBH" else output.transpose(0, 1)
    return output.permute(_TO_SBHD[layout]).reshape(sq, batch, -1)


def called_in(kernel: Attend, layout: Layout) -> Attend:
    """The kernel for tensors [s, b, n, d], called in another layout."""

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        heads = query.shape[2]
        chosen = replace(options, layout=layout, heads=heads)
        merged = attend_in(kernel, query, key, value, chosen)
        return merged.view(*merged.shape[:2], heads, -1)

    return attend
