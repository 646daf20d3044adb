"""One attention call of Transformer Engine in the terms of the kernel contract.

Legend: b batch, sq and sk lengths of queries and keys, n query heads, g key and value heads, d head
size, dv of values, t tokens of packed sequences. Formats: SBHD [s, b, n, d], BSHD [b, s, n, d],
THD [t, n, d], BHSD [b, n, s, d].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, cast

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor

from accel_bridge.kernels import (
    Attend,
    AttentionMask,
    AttentionOptions,
    Layout,
    Sequences,
    SequenceSplit,
    context_parallel_attention,
    packed_attention,
    packed_context_parallel_attention,
)
from accel_bridge.kernels.context_parallel import split_parts
from accel_bridge.kernels.packed import packed_parts

#: The kernel's name of a format.
LAYOUTS: Final[dict[str, Layout]] = {"SBHD": "SBHD", "BSHD": "BSHD", "THD": "TND", "BHSD": "BNSD"}
#: Query, key and value.
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_WHOLE: Final = SequenceSplit()


@lru_cache(maxsize=256)
def mask_of(causal: bool, window: tuple[int, int], bottom_right: bool) -> AttentionMask:
    """The kernel's mask, without padding.

    :param window: ``(left, right)``, -1 for no limit.
    :param bottom_right: the last query stands at the last key, not the first at the first.
    """
    left, right = (None if end < 0 else end for end in window)
    band = None if left is None and (right is None or causal) else (left, right)
    return AttentionMask(
        causal=causal, window=band, alignment="bottom_right" if bottom_right else "top_left"
    )


@lru_cache(maxsize=256)
def options_of(
    layout: Layout, mask: AttentionMask, scale: float, dropout: float
) -> AttentionOptions:
    """Options without tensors, which every layer and step needs again."""
    return AttentionOptions(layout=layout, mask=mask, scale=scale, dropout=dropout)


@lru_cache(maxsize=64)
def full_cu_seqlens(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """int32 [b + 1]: cumulative lengths of sequences that are all ``length`` long."""
    with torch.inference_mode(False):  # training takes it, too
        return torch.arange(batch + 1, dtype=torch.int32, device=device) * length


def split_of(
    group: dist.ProcessGroup | list[dist.ProcessGroup] | None, communication: str
) -> SequenceSplit | None:
    """How context parallel ranks share the sequence; None for one rank.

    ``p2p`` and ``all_gather`` name two ways to bring keys and values to every rank; here they are
    gathered.
    """
    if group is None:
        return None
    if isinstance(group, (list, tuple)):
        split = SequenceSplit(heads=group[0], keys=group[1])
    elif communication == "a2a":
        split = SequenceSplit(heads=group)
    else:
        split = SequenceSplit(keys=group)
    return split if split.size > 1 else None


@dataclass(frozen=True, slots=True)
class Padding:
    """Where the tokens are, where a format does not say it.

    :param cu_seqlens: cumulative lengths of queries and keys, without padding.
    :param padded: the same with padding between sequences (THD only), or None.
    """

    cu_seqlens: tuple[torch.Tensor, torch.Tensor]
    padded: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)

    def sequences(self) -> Sequences:
        """The sequences of a THD call."""
        return Sequences(*self.cu_seqlens, *self.padded)

    def of_rows(self, batch: int, sq: int, sk: int, device: torch.device) -> Sequences:
        """Rows [b, s] as sequences of ``s`` tokens with padding at their ends."""
        padded = full_cu_seqlens(batch, sq, device)
        keys = padded if sk == sq else full_cu_seqlens(batch, sk, device)
        return Sequences(*self.cu_seqlens, padded, keys)


def attend(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    padding: Padding | None,
    split: SequenceSplit | None = None,
) -> torch.Tensor:
    """Attention in the options' layout; padding gives zeros.

    Fake tensors have no lengths: their call has the same shapes, without padding.

    :returns: as the query with dv for d.
    """
    tensors = (query, key, value)
    if padding is not None and isinstance(query, FakeTensor):
        return _without_lengths(kernel, tensors, options, split)
    if options.layout == "TND":
        assert padding is not None, "THD needs cu_seqlens"
        return _packed(kernel, tensors, options, padding.sequences(), split)
    if padding is not None:
        return _padded_rows(kernel, tensors, options, padding, split)
    if split is not None:
        return _split(kernel, tensors, options, split)
    return cast(torch.Tensor, kernel(query, key, value, options))


def _without_lengths(
    kernel: Attend, tensors: Tensors, options: AttentionOptions, split: SequenceSplit | None
) -> torch.Tensor:
    if options.layout != "TND":
        return attend(kernel, *tensors, options, None, split)
    query, key, value = (tensor.unsqueeze(0) for tensor in tensors)
    options = replace(options, layout="BSHD")
    return attend(kernel, query, key, value, options, None, split).squeeze(0)


def _packed(
    kernel: Attend,
    tensors: Tensors,
    options: AttentionOptions,
    sequences: Sequences,
    split: SequenceSplit | None,
) -> torch.Tensor:
    if split is None:
        return packed_attention(kernel, *tensors, options, sequences)
    return packed_context_parallel_attention(kernel, *tensors, options, sequences, split)


def _padded_rows(
    kernel: Attend,
    tensors: Tensors,
    options: AttentionOptions,
    padding: Padding,
    split: SequenceSplit | None,
) -> torch.Tensor:
    """Only real tokens reach the kernel, as packed sequences."""
    swapped = options.layout == "SBHD"
    rows, sequences = _rows(tensors, swapped, padding, split)
    options = replace(options, layout="TND")
    output = packed_context_parallel_attention(kernel, *rows, options, sequences, split or _WHOLE)
    output = torch.unflatten(output, 0, (sequences.queries.numel() - 1, -1))
    return output.transpose(0, 1) if swapped else output


def _rows(
    tensors: Tensors, swapped: bool, padding: Padding, split: SequenceSplit | None
) -> tuple[Tensors, Sequences]:
    """[b, s, n, d], or [s, b, n, d] if swapped, as sequences with padding at their ends."""
    if swapped:
        tensors = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
    ranks = 1 if split is None else split.size
    batch, sq = tensors[0].shape[:2]
    sequences = padding.of_rows(batch, sq * ranks, tensors[1].shape[1] * ranks, tensors[0].device)
    return cast(Tensors, tuple(one.flatten(0, 1) for one in tensors)), sequences


def _split(
    kernel: Attend, tensors: Tensors, options: AttentionOptions, split: SequenceSplit
) -> torch.Tensor:
    if options.layout == "SBHD":
        return context_parallel_attention(kernel, *tensors, options, split)
    swapped = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
    options = replace(options, layout="SBHD")
    return context_parallel_attention(kernel, *swapped, options, split).transpose(0, 1)


def largest_logit(
    kernel: Callable[[torch.Tensor, torch.Tensor, AttentionOptions], torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    options: AttentionOptions,
    padding: Padding | None,
    split: SequenceSplit | None,
) -> torch.Tensor:
    """[n] in the query's dtype: the largest score of each head, over all ranks of a split."""
    with torch.no_grad():
        tensors = (query.detach(), key.detach(), key.detach()[..., :1])
        if padding is not None and not isinstance(query, FakeTensor):
            sequences = padding.sequences()
            if options.layout != "TND":
                tensors, sequences = _rows(tensors, options.layout == "SBHD", padding, split)
                options = replace(options, layout="TND")
            parts, _ = packed_parts(*tensors, options, sequences, split or _WHOLE)
        elif split is not None:
            if options.layout == "BSHD":
                tensors = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
                options = replace(options, layout="SBHD")
            parts, _ = split_parts(*tensors, options, split)
        else:
            return kernel(query, key, options).to(query.dtype)
        found = [kernel(part.query, part.key, part.options) for part in parts]
        largest = torch.stack(found).amax(0)
        if split is not None:
            largest = _over_ranks(largest, split)
        return largest.to(query.dtype)


def _over_ranks(largest: torch.Tensor, split: SequenceSplit) -> torch.Tensor:
    if split.keys is not None:
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=split.keys)
    if split.heads is not None and split.neighbours > 1:
        heads = largest.new_empty(split.neighbours * largest.shape[0])
        dist.all_gather_into_tensor(heads, largest, group=split.heads)
        return heads
    return largest
