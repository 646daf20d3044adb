"""The largest attention score of each head, without keeping any score.

Legend: b batch or sequences, sq, sk lengths, n query heads, g key heads, d head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels._launch import Quick, blocks, power_of_two
from accel_bridge.backends.cuda.kernels.attention import packing_of
from accel_bridge.kernels import AttentionMask, AttentionOptions, to_bnsd

#: (queries, keys, numbers of a head that one step multiplies at most) of a tile. Float32 GEMMs
#: have no tensor cores: they are written out one by one, which takes minutes to compile when whole.
_TILE = (64, 64, 256)
_TILE_FLOAT32 = (32, 32, 16)
#: Beyond any position, and still a 32-bit integer when one is added to it.
_UNLIMITED = 2**30


# No kernel of its own for each length: only what loads and stores lie along is worth one.
@Quick
@triton.jit(do_not_specialize=["sq", "sk", "left", "right", "bottom_right", "repeat"])
def _largest(
    q,
    k,
    out,
    cu_q,
    cu_k,
    scale,
    sq,
    sk,
    left,
    right,
    bottom_right,
    repeat,
    d,
    q_b,
    q_s,
    q_n,
    k_b,
    k_s,
    k_n,
    PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
    PART: tl.constexpr,
):
    """Some queries of one head and sequence: the largest of their scores."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    member = tl.program_id(2)
    if PACKED:
        q_start = tl.load(cu_q + member)
        k_start = tl.load(cu_k + member)
        sq = tl.load(cu_q + member + 1) - q_start
        sk = tl.load(cu_k + member + 1) - k_start
        q += q_start.to(tl.int64) * q_s
        k += k_start.to(tl.int64) * k_s
    else:
        q += member.to(tl.int64) * q_b
        k += member.to(tl.int64) * k_b
    q += head.to(tl.int64) * q_n
    k += (head // repeat).to(tl.int64) * k_n
    first = block * ROWS
    row = first + tl.arange(0, ROWS)
    inner = tl.arange(0, PART)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    if first < sq:
        shift = (sk - sq) * bottom_right
        begin = tl.maximum(first + shift - left, 0) // COLUMNS * COLUMNS
        end = tl.minimum(tl.minimum(first + ROWS, sq) + shift + right, sk)
        queries_at = q + row[:, None].to(tl.int64) * q_s + inner[None, :]
        real = row[:, None] < sq
        if PART == SIZE:
            queries = tl.load(queries_at, mask=real & (inner[None, :] < d), other=0.0)
        for start in range(begin, end, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            keys_at = k + column[None, :].to(tl.int64) * k_s + inner[:, None]
            seen = column[None, :] < sk
            if PART == SIZE:
                keys = tl.load(keys_at, mask=seen & (inner[:, None] < d), other=0.0)
                scores = tl.dot(queries, keys, input_precision="ieee") * scale
            else:
                scores = tl.zeros((ROWS, COLUMNS), tl.float32)
                for part in range(0, SIZE, PART):
                    wide = part + inner < d
                    some = tl.load(queries_at + part, mask=real & wide[None, :], other=0.0)
                    others = tl.load(keys_at + part, mask=seen & wide[:, None], other=0.0)
                    scores += tl.dot(some, others, input_precision="ieee")
                scores = scores * scale
            seen = seen & real
            seen = seen & (column[None, :] >= row[:, None] + shift - left)
            seen = seen & (column[None, :] <= row[:, None] + shift + right)
            best = tl.maximum(best, tl.max(tl.where(seen, scores, float("-inf")), 1))
    place = (member * tl.num_programs(0) + block) * tl.num_programs(1) + head
    tl.store(out + place, tl.max(best, 0))


@dataclass(frozen=True, slots=True)
class Reach:
    """Which keys a query sees: ``i - left <= j <= i + right``; None is unlimited.

    :param bottom_right: the last query stands at the last key, not the first at the first.
    """

    left: int | None = None
    right: int | None = None
    bottom_right: bool = True


def by_position(
    query: torch.Tensor,
    key: torch.Tensor,
    reach: Reach,
    scale: float,
    packing: tuple[torch.Tensor, torch.Tensor, int] | None = None,
) -> torch.Tensor:
    """float32 [n] of strided views; nothing is copied, and nothing waits.

    :param query: [b, sq, n, d]; [t, n, d] with ``packing``.
    :param key: the same with g heads.
    :param packing: cumulative lengths of queries and keys (int32) and the longest query.
    """
    query, key = query.detach(), key.detach()
    if packing is None:
        members, sq, heads, size = query.shape
        sk, cu_q, cu_k = key.shape[1], query, query
        strides = (*query.stride()[:3], *key.stride()[:3])
    else:
        cu_q, cu_k, sq = packing
        members, sk = cu_q.numel() - 1, 0
        heads, size = query.shape[1:]
        strides = (0, *query.stride()[:2], 0, *key.stride()[:2])
    if query.stride(-1) != 1 or key.stride(-1) != 1:
        return by_position(query.contiguous(), key.contiguous(), reach, scale, packing)
    held, columns, part = _TILE_FLOAT32 if query.dtype == torch.float32 else _TILE
    whole = max(16, power_of_two(size))
    rows = max(1, blocks(sq, held))
    out = torch.empty(members * rows, heads, dtype=torch.float32, device=query.device)
    if members:
        _largest[(rows, heads, members)](
            query,
            key,
            out,
            cu_q,
            cu_k,
            scale,
            sq,
            sk,
            _UNLIMITED if reach.left is None else reach.left,
            _UNLIMITED if reach.right is None else reach.right,
            int(reach.bottom_right),
            heads // key.shape[-2],
            size,
            *strides,
            PACKED=packing is not None,
            ROWS=held,
            COLUMNS=columns,
            SIZE=whole,
            PART=min(part, whole),
            num_warps=4,
        )
    return out.amax(0)


def max_logit(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """The contract ``attention_max_logit``."""
    left, right = _ends(options.mask)
    reach = Reach(left, right, options.mask.alignment == "bottom_right")
    scale = options.scale
    if options.layout == "TND":
        packing = packing_of(query, key, options)
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        lengths = (packing.queries, packing.keys, packing.longest_query)
        return by_position(query, key, reach, scale, lengths)
    query, key, _ = to_bnsd(query, key, key, options.layout, options.heads)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return by_position(query.transpose(1, 2), key.transpose(1, 2), reach, scale)


def _ends(mask: AttentionMask) -> tuple[int | None, int | None]:
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    return left, right


def supports(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> str | None:
    """Where :func:`max_logit` applies."""
    if options.mask.masked is not None or options.bias is not None:
        return "an explicit mask or a bias: the Triton kernel sees positions only"
    if options.softcap or options.alibi_slopes is not None:
        return "a soft cap or ALiBi"  # the reference refuses both
    if options.layout in ("SBH", "BSH"):
        query, key, _ = to_bnsd(query, key, key, options.layout, options.heads)
    if query.shape[-1] > 256:
        return f"heads of {query.shape[-1]}: the Triton kernel takes up to 256"
    if options.layout == "TND" and options.cu_seqlens_q is None:
        return "lengths are missing"
    return not_for_triton(query, key)
