"""One attention call of Transformer Engine in the terms of the kernel contract.

Legend: b batch, sq and sk lengths of queries and keys, n query heads, g key and value heads, d head
size, dv of values, t tokens of packed sequences. Formats: sbhd [s, b, n, d], bshd [b, s, n, d],
thd [t, n, d].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, cast

import torch
import torch.distributed as dist

from accel_bridge.errors import BridgeError
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

from ._masks import (
    Masks,
    alibi_bias,
    alibi_slopes_of,
    get_full_cu_seqlens,
    get_full_mask,
    get_padding_mask,
)

#: The kernel's name of a format.
LAYOUTS: Final[dict[str, Layout]] = {"sbhd": "SBHD", "bshd": "BSHD", "thd": "TND"}
#: Query, key and value.
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
#: No exchange, no gathering.
_WHOLE: Final = SequenceSplit()


@lru_cache(maxsize=256)
def mask_of(mask_type: str, window: tuple[int, int], bottom_right: bool) -> AttentionMask:
    """The kernel's mask of a mask type, without padding or an explicit mask."""
    left, right = (None if end < 0 else end for end in window)
    causal = "causal" in mask_type
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Where the tokens are, where a format does not say it.

    :param cu_seqlens: cumulative lengths of queries and keys, without padding.
    :param padded: the same with padding between sequences (thd only), or None.
    """

    cu_seqlens: tuple[torch.Tensor, torch.Tensor]
    padded: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)

    def sequences(self) -> Sequences:
        """The sequences of a thd call."""
        return Sequences(*self.cu_seqlens, *self.padded)

    def of_rows(self, batch: int, sq: int, sk: int, device: torch.device) -> Sequences:
        """Rows [b, s] as sequences of ``s`` tokens with padding at their ends."""
        padded = get_full_cu_seqlens(batch, sq, device)
        keys = padded if sk == sq else get_full_cu_seqlens(batch, sk, device)
        return Sequences(*self.cu_seqlens, padded, keys)


def attend(
    kernel: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    options: AttentionOptions,
    padding: Padding | None,
    split: SequenceSplit | None,
) -> torch.Tensor:
    """Attention in the options' layout: SBHD, BSHD or TND; padding gives zeros.

    :returns: as the query, with heads and dv merged: [sq, b, n * dv], [b, sq, n * dv], [t, n * dv].
    """
    tensors = (query, key, value)
    if options.layout == "TND":
        assert padding is not None
        output = _packed(kernel, tensors, options, padding.sequences(), split)
    elif padding is not None:
        output = _padded_rows(kernel, tensors, options, padding, split)
    elif split is not None:
        output = _split(kernel, tensors, options, split)
    else:
        output = cast(torch.Tensor, kernel(query, key, value, options))
    return output.reshape(*output.shape[:-2], -1)


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
        if padding is None and split is None:
            return kernel(query, key, options).to(query.dtype)
        if padding is not None:
            sequences = padding.sequences()
            if options.layout != "TND":
                tensors, sequences = _rows(tensors, options.layout == "SBHD", padding, split)
                options = replace(options, layout="TND")
            parts, _ = packed_parts(*tensors, options, sequences, split or _WHOLE)
        else:
            assert split is not None
            if options.layout == "BSHD":
                tensors = cast(Tensors, tuple(one.transpose(0, 1) for one in tensors))
                options = replace(options, layout="SBHD")
            parts, _ = split_parts(*tensors, options, split)
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


def with_matrices(
    options: AttentionOptions,
    mask_type: str,
    mask: Masks | None,
    padding: Padding | None,
    query: torch.Tensor,
    key: torch.Tensor,
) -> AttentionOptions:
    """Options with the explicit mask that an ``arbitrary`` or padding mask comes down to.

    :raises BridgeError: packed sequences, which have no matrix of scores.
    """
    if options.layout == "TND":
        raise BridgeError(
            "Packed sequences (qkv_format thd) cannot have an explicit mask or a bias here.",
            evidence=f"mask type {mask_type}, bias {options.bias is not None}",
            next="use qkv_format bshd or sbhd with a padding mask",
        )
    if mask_type == "arbitrary":
        assert isinstance(mask, torch.Tensor), "Please provide attention_mask for arbitrary!"
        return replace(options, mask=replace(options.mask, masked=mask.bool()))
    if "padding" not in mask_type:
        return options
    length = 0 if options.layout == "SBHD" else 1
    sq, sk = query.shape[length], key.shape[length]
    if padding is not None:
        batch = query.shape[1 - length]
        mask = get_padding_mask(batch, *padding.cu_seqlens, sq, sk, attention_type="cross")
    window = options.mask.window or (None, None)
    sides = cast(tuple[int, int], tuple(-1 if end is None else end for end in window))
    aligned = options.mask.alignment == "bottom_right"
    _, hidden, _, _ = get_full_mask(sq, sk, mask_type, mask, sides, bottom_right_alignment=aligned)
    return replace(options, mask=AttentionMask(masked=hidden))


def with_bias(
    options: AttentionOptions,
    kind: str,
    bias: torch.Tensor | None,
    slopes: torch.Tensor | None,
    padding: Padding | None,
    query: torch.Tensor,
    key: torch.Tensor,
) -> AttentionOptions:
    """Options with the bias that is added to the scaled scores.

    :param kind: ``post_scale_bias``, ``pre_scale_bias`` or ``alibi``.
    """
    length = 0 if options.layout == "SBHD" else 1
    batch, heads = query.shape[1 - length], query.shape[-2]
    if kind == "alibi":
        assert bias is None, (
            "core_attention_bias must be None when core_attention_bias_type is alibi!"
        )
        lengths = None
        if padding is not None:
            lengths = (padding.cu_seqlens[0].diff(), padding.cu_seqlens[1].diff())
        if slopes is None:
            slopes = alibi_slopes_of(heads, query.device)
        aligned = options.mask.alignment == "bottom_right"
        sizes = (query.shape[length], key.shape[length])
        return replace(options, bias=alibi_bias(slopes, *sizes, aligned, lengths))
    assert slopes is None, "core_attention_bias_type must be alibi in order to use alibi_slopes!"
    assert bias is not None, f"{kind} needs core_attention_bias"
    fits = bias.dim() == 4 and bias.shape[0] in (1, batch) and bias.shape[1] in (1, heads)
    assert fits, "core_attention_bias must be in one of {bhss, 1hss, b1ss, 11ss, 111s} shapes"
    assert options.scale is not None
    return replace(options, bias=bias * options.scale if kind == "pre_scale_bias" else bias)
