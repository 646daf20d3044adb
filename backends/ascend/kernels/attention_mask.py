"""From :class:`AttentionMask` to ``npu_fusion_attention``'s sparse modes.

Legend: b batch, n heads, sq and sk lengths of queries and keys, t packed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch

from accel_bridge.kernels import AttentionMask

#: CANN's "no limit".
UNLIMITED: Final = 2147483647
#: Side of the compressed mask of modes 2, 3 and 4.
COMPRESSED: Final = 2048
#: Lengths (queries, keys) of each packed sequence, or of the one sequence.
Lengths = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The part of a call that says which keys are seen, without its tensors.

    :param mode: CANN's sparse_mode: 0, 2, 3 or 4.
    :param pre: keys before the query that are seen, from the bottom right.
    :param next: keys after it.
    :param whole: a mask of sq x sk must be sent (mode 0); else the compressed mask, or none if
        everything is visible.
    """

    mode: int = 0
    pre: int = UNLIMITED
    next: int = UNLIMITED
    whole: bool = False

    @property
    def full(self) -> bool:
        """Every query sees every key."""
        return self.mode == 0 and not self.whole


def choose(mask: AttentionMask, lengths: Lengths, packed: bool) -> Sparsity | str:
    """The mode for ``mask``, or why packed sequences cannot have it."""
    if mask.masked is not None:
        return Sparsity(whole=True)
    left, right = mask.window if mask.window is not None else (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    bounds = [mask.bounds(sq, sk) for sq, sk in lengths]
    cut_left = any(low is not None for low, _ in bounds)
    cut_right = any(high is not None for _, high in bounds)
    if not (cut_left or cut_right):
        return Sparsity()
    top_left = mask.alignment == "top_left"
    if cut_right and not cut_left and right == 0:
        return Sparsity(mode=2 if top_left else 3)
    # Mode 4 counts from the bottom right.
    shifts = {sk - sq if top_left else 0 for sq, sk in lengths}
    if len(shifts) > 1:
        return "a band from the top left in sequences of unequal lengths of queries and keys"
    shift = shifts.pop()
    pre = UNLIMITED if left is None or not cut_left else left + shift
    after = UNLIMITED if right is None or not cut_right else right - shift
    if pre < 0 or after < 0:
        return "a band off the diagonal in packed sequences" if packed else Sparsity(whole=True)
    return Sparsity(4, pre, after)


@lru_cache(maxsize=4)
def triangle(device: torch.device) -> torch.Tensor:
    """The compressed mask: bool [2048, 2048], True above the diagonal; one for each device."""
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool, device=device).triu(1)


def whole_mask(
    mask: AttentionMask, batch: int, sq: int, sk: int, device: torch.device
) -> torch.Tensor:
    """The mask of mode 0: bool [b or 1, n or 1, sq, sk], True = hidden."""
    hidden = mask.hidden(sq, sk, device)
    assert hidden is not None, "a mask without anything hidden needs no whole mask"
    while hidden.dim() < 4:
        hidden = hidden.unsqueeze(0)
    # B1SS, 11SS and BNSS exist; 1NSS does not.
    rows = batch if hidden.shape[1] > 1 else hidden.shape[0]
    return hidden.expand(rows, -1, sq, sk).contiguous()


def empty_rows(mask: AttentionMask, lengths: Lengths, device: torch.device) -> torch.Tensor | None:
    """Bool [t], True for queries that see no key by position; None when there are none.

    ``t`` is the sum of the sequences' queries, or sq of one sequence.
    """
    empty: list[bool] = []
    for sq, sk in lengths:
        low, high = mask.bounds(sq, sk)
        if sk and (high is None or high >= 0) and (low is None or sq - 1 + low < sk):
            empty += [False] * sq
            continue
        first = [0 if low is None else max(0, row + low) for row in range(sq)]
        last = [sk - 1 if high is None else min(sk - 1, row + high) for row in range(sq)]
        empty += [start > end for start, end in zip(first, last, strict=True)]
    if not any(empty):
        return None
    return torch.tensor(empty, device=device)
