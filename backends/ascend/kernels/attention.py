"""Attention on ``npu_fusion_attention``, which keeps no score matrix.

Legend: b batch, n query heads, g key/value heads, d head size, dv of values, sq, sk lengths,
t packed tokens.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch.nn import functional

from accel_bridge.backends.ascend import limits
from accel_bridge.backends.ascend.kernels import attention_mask as masks
from accel_bridge.kernels import (
    ATTENTION,
    AttentionMask,
    AttentionOptions,
    AttentionResult,
    Layout,
    TensorCache,
    sequence_lengths,
)

#: torch_npu's name for a layout, and whether its heads are one dimension with their size.
_NPU_LAYOUT: Final[dict[str, tuple[str, bool]]] = {
    "SBH": ("SBH", True),
    "SBHD": ("SBH", True),
    "BSH": ("BSH", True),
    "BSHD": ("BSND", False),
    "BNSD": ("BNSD", False),
    "TND": ("TND", False),
}
#: Place of b, n and s in the layouts with separate heads.
_PLACES: Final = {"SBHD": (1, 2, 0), "BSHD": (0, 2, 1), "BNSD": (0, 1, 2)}
#: Dimensions that turn [b, n, s] into a layout's order.
_FROM_BNS: Final = {"SBHD": (2, 0, 1), "BSHD": (0, 2, 1), "BNSD": (0, 1, 2)}

#: Lengths of sequences: reading them waits for the device.
_LENGTHS: Final[TensorCache[masks.Lengths]] = TensorCache()


class _Sizes(NamedTuple):
    """Sizes of one call."""

    batch: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    lengths: masks.Lengths


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> AttentionResult:
    """The contract ``attention``."""
    layout, mask, scale = options.layout, options.mask, options.scale
    query, key, value, order = _separate_heads(query, key, value, layout, options.heads)
    sizes = _sizes(query, key, value, order, options)
    sparsity = masks.choose(mask, sizes.lengths, order == "TND")
    assert isinstance(sparsity, masks.Sparsity), sparsity
    hidden, empty = _mask_tensors(mask, sparsity, sizes, order, query.device)
    # Without a mask the operator sees everything, whatever its mode.
    assert hidden is not None or sparsity.full
    if sizes.value_size < sizes.head_size:
        value = functional.pad(value, (0, sizes.head_size - sizes.value_size))
    npu_layout, flat = _NPU_LAYOUT[layout]
    tensors = [part.flatten(-2) if flat else part for part in (query, key, value)]
    output: torch.Tensor
    output, maximum, total, *_ = torch.ops.npu.npu_fusion_attention(
        *tensors,
        sizes.heads,
        npu_layout,
        atten_mask=hidden,
        scale=1.0 / math.sqrt(sizes.head_size) if scale is None else scale,
        keep_prob=1.0 - options.dropout,
        pre_tockens=sparsity.pre,
        next_tockens=sparsity.next,
        inner_precise=0 if empty is None else 2,
        actual_seq_qlen=_ends(sizes.lengths, 0) if order == "TND" else None,
        actual_seq_kvlen=_ends(sizes.lengths, 1) if order == "TND" else None,
        sparse_mode=sparsity.mode,
    )
    if flat:
        output = output.unflatten(-1, (sizes.heads, sizes.head_size))
    output = output[..., : sizes.value_size]
    if empty is not None:
        rows = empty[0, 0] if order == "TND" else empty.permute(_FROM_BNS[order])
        output = output.masked_fill(rows[:, None, None] if order == "TND" else rows[..., None], 0.0)
    output = output.flatten(-2) if layout in ("SBH", "BSH") else output
    if not options.return_lse:
        return output
    # [b, n, sq, 8], eight copies.
    lse = (maximum + total.log())[..., 0].detach()
    return output, lse if empty is None else lse.masked_fill(empty, -torch.inf)


def _separate_heads(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: Layout,
    heads: int | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str]:
    """Views with heads and head size apart, and their layout.

    :raises ValueError: sizes that do not divide.
    """
    if layout not in ("SBH", "BSH"):
        return query, key, value, layout
    if heads is None or query.shape[-1] % heads:
        raise ValueError(f"layout {layout} of {list(query.shape)} needs heads, not {heads}")
    head_size = query.shape[-1] // heads
    kv_heads, rest = divmod(key.shape[-1], head_size)
    if rest:
        raise ValueError(f"key width {key.shape[-1]} is not a multiple of head size {head_size}")
    separated = (
        query.unflatten(-1, (heads, head_size)),
        key.unflatten(-1, (kv_heads, head_size)),
        value.unflatten(-1, (kv_heads, -1)),
    )
    return *separated, f"{layout}D"


def _sizes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    order: str,
    options: AttentionOptions,
) -> _Sizes:
    """:param order: SBHD, BSHD, BNSD or TND."""
    if order == "TND":
        lengths = _sequence_lengths(query, key, options)
        batch, heads, kv_heads = 1, query.shape[1], key.shape[1]
    else:
        if options.cu_seqlens_q is not None or options.cu_seqlens_kv is not None:
            raise ValueError(f"cumulative lengths belong to layout TND, not {order}")
        b, n, s = _PLACES[order]
        lengths = [(query.shape[s], key.shape[s])]
        batch, heads, kv_heads = query.shape[b], query.shape[n], key.shape[n]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} key heads")
    return _Sizes(batch, heads, kv_heads, query.shape[-1], value.shape[-1], lengths)


def _sequence_lengths(
    query: torch.Tensor, key: torch.Tensor, options: AttentionOptions
) -> masks.Lengths:
    """Lengths of the sequences that are not empty, read from the device once for all layers."""

    def read() -> masks.Lengths:
        lengths = sequence_lengths(query, key, options)
        return [pair for pair in lengths if pair != (0, 0)]

    if options.cu_seqlens_q is None or options.mask.masked is not None:
        return read()  # the contract's error
    sizes = (query.shape[0], key.shape[0])
    return _LENGTHS.get((options.cu_seqlens_q, options.cu_seqlens_kv), sizes, read)


def _ends(lengths: masks.Lengths, side: int) -> list[int]:
    """Cumulative lengths without the leading 0."""
    ends, end = [], 0
    for pair in lengths:
        end += pair[side]
        ends.append(end)
    return ends


def _mask_tensors(
    mask: AttentionMask,
    sparsity: masks.Sparsity,
    sizes: _Sizes,
    order: str,
    device: torch.device,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The operator's mask, and bool [b or 1, n or 1, sq] (TND: [1, 1, t]) of rows that may be
    empty."""
    if sparsity.whole:
        hidden = masks.whole_mask(mask, sizes.batch, *sizes.lengths[0], device)
        return hidden, hidden.all(-1)
    empty = masks.empty_rows(mask, sizes.lengths, device)
    rows = None if empty is None else empty[None, None]
    return None if sparsity.full else masks.triangle(device), rows


def supports(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
) -> str | None:
    """None if the operator's documented rules allow the call, else the broken rule."""
    if found := limits.here().dtype_objection("npu_fusion_attention", query, key, value):
        return found
    if options.softmax_offset is not None:
        return "npu_fusion_attention: a sink needs CANN 8.5, and is not used"
    if options.bias is not None or options.alibi_slopes is not None:
        return "npu_fusion_attention: its positional shift (pse) is not used for a bias"
    if options.softcap:
        return "npu_fusion_attention: it has no soft cap of the scores"
    if not 0.0 <= options.dropout < 1.0:
        return f"npu_fusion_attention: keep_prob is above 0, dropout is {options.dropout}"
    query, key, value, order = _separate_heads(query, key, value, options.layout, options.heads)
    if options.return_lse and order == "TND":
        return "npu_fusion_attention: the order of TND's softmax sums depends on CANN's version"
    sizes = _sizes(query, key, value, order, options)
    if sizes.value_size > sizes.head_size:
        return f"npu_fusion_attention: Dv {sizes.value_size} is above Dk {sizes.head_size}"
    if any(sq and not sk for sq, sk in sizes.lengths):
        return "npu_fusion_attention: a sequence has queries but no keys"
    pairs = [("heads", sizes.heads), ("head_size", sizes.head_size)]
    if order == "TND":
        pairs += [("documents", len(sizes.lengths))]
        pairs += [("packed_tokens", part.shape[0]) for part in (query, key)]
    else:
        pairs += [("batch", sizes.batch)]
        pairs += [("sequence", length) for length in sizes.lengths[0]]
    if found := limits.here().objection("npu_fusion_attention", *pairs):
        return found
    sparsity = masks.choose(options.mask, sizes.lengths, order == "TND")
    return f"npu_fusion_attention: {sparsity}" if isinstance(sparsity, str) else None


KERNELS: Final = (
    ATTENTION.kernel(
        attention,
        "flash attention: no score matrix, masked blocks are skipped",
        supports,
        "torch_npu.npu_fusion_attention",
    ),
)
