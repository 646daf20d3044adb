"""The largest attention score of each head, without keeping any score.

Legend: b batch or documents, sq, sk lengths, n query heads, g key heads, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from accel_bridge.backends.cuda.fused._launch import blocks, power_of_two

#: Queries and keys of a tile.
_ROWS = 64
_COLUMNS = 64


@triton.jit
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
    repeat,
    d,
    q_b,
    q_s,
    q_n,
    k_b,
    k_s,
    k_n,
    PACKED: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BOTTOM_RIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SIZE: tl.constexpr,
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
    inner = tl.arange(0, SIZE)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    if first < sq:
        shift = 0
        if BOTTOM_RIGHT:
            shift = sk - sq
        begin = 0
        end = sk
        if LEFT:
            begin = tl.maximum(first + shift - left, 0) // COLUMNS * COLUMNS
        if RIGHT:
            end = tl.minimum(tl.minimum(first + ROWS, sq) + shift + right, sk)
        queries = tl.load(
            q + row[:, None].to(tl.int64) * q_s + inner[None, :],
            mask=(row[:, None] < sq) & (inner[None, :] < d),
            other=0.0,
        )
        for start in range(begin, end, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            keys = tl.load(
                k + column[None, :].to(tl.int64) * k_s + inner[:, None],
                mask=(column[None, :] < sk) & (inner[:, None] < d),
                other=0.0,
            )
            scores = tl.dot(queries, keys, input_precision="ieee") * scale
            seen = (row[:, None] < sq) & (column[None, :] < sk)
            if LEFT:
                seen = seen & (column[None, :] >= row[:, None] + shift - left)
            if RIGHT:
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


def max_logit(
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
        return max_logit(query.contiguous(), key.contiguous(), reach, scale, packing)
    rows = max(1, blocks(sq, _ROWS))
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
            0 if reach.left is None else reach.left,
            0 if reach.right is None else reach.right,
            heads // key.shape[-2],
            size,
            *strides,
            PACKED=packing is not None,
            LEFT=reach.left is not None,
            RIGHT=reach.right is not None,
            BOTTOM_RIGHT=reach.bottom_right,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            SIZE=max(16, power_of_two(size)),
            num_warps=4,
        )
    return out.amax(0)
