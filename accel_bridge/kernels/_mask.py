"""Which keys a query may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Which keys a query may see: the AND of causality, a band and an explicit mask.

    Query i of sq and key j of sk are compared by position. With ``bottom_right`` alignment the
    last query is at the position of the last key (i counts from ``sk - sq``, as in flash-attn and
    in Megatron's sliding window); with ``top_left`` the first query is at that of the first key.
    With packed sequences (TND) each sequence has its own positions.

    A row without any visible key gives an output of zeros and a log-sum-exp of -inf.

    :param causal: j <= i only.
    :param window: ``(left, right)``: ``i - left <= j <= i + right``, both ends inclusive; None on
        a side is unlimited. The same pair as flash-attn's and Megatron's ``window_size`` (where
        -1 is unlimited) and CANN's ``pre_tockens, next_tockens``.
    :param alignment: where queries stand when sq != sk.
    :param masked: bool, broadcastable to [b, n, sq, sk]; **True = hidden**, as in Megatron and
        CANN and the reverse of torch's ``scaled_dot_product_attention``. Not for TND.
    """

    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    alignment: Literal["top_left", "bottom_right"] = "bottom_right"
    masked: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.masked is not None and self.masked.dtype != torch.bool:
            raise TypeError(f"masked must be bool with True = hidden, not {self.masked.dtype}")

    @classmethod
    def from_documents(cls, sequences: torch.Tensor, causal: bool) -> AttentionMask:
        """A mask that keeps sequences apart in a batch of packed rows.

        :param sequences: [b, s], the sequence number of every token.
        """
        apart = sequences[:, None, :, None] != sequences[:, None, None, :]
        return cls(causal=causal, masked=apart)

    def bounds(self, sq: int, sk: int) -> tuple[int | None, int | None]:
        """The band including causality: keys ``i + low <= j <= i + high`` for query row i.

        Rows count from 0 whatever the alignment; None where nothing in sq x sk is cut off.
        """
        left, right = self.window if self.window is not None else (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        shift = sk - sq if self.alignment == "bottom_right" else 0
        low = None if left is None else shift - left
        high = None if right is None else shift + right
        # The smallest j - i in the matrix is -(sq - 1), the largest sk - 1.
        if low is not None and low <= 1 - sq:
            low = None
        if high is not None and high >= sk - 1:
            high = None
        return low, high

    def is_plain_causal(self, sq: int, sk: int) -> bool:
        """True when the mask is exactly the square lower triangle, however it was specified."""
        return self.masked is None and sq == sk and sq > 1 and self.bounds(sq, sk) == (None, 0)

    def is_full(self, sq: int, sk: int) -> bool:
        """True when every query sees every key."""
        return self.masked is None and self.bounds(sq, sk) == (None, None)

    def hidden(self, sq: int, sk: int, device: torch.device | str) -> torch.Tensor | None:
        """Bool tensor, True = hidden, broadcastable to [b, n, sq, sk]; None when all is visible."""
        band = hidden_band(self.bounds(sq, sk), sq, sk, device)
        if band is None or self.masked is None:
            return self.masked if band is None else band
        return band | self.masked


def hidden_band(
    bounds: tuple[int | None, int | None], sq: int, sk: int, device: torch.device | str
) -> torch.Tensor | None:
    """Bool tensor [sq, sk], True outside ``i + low <= j <= i + high``; None without bounds."""
    low, high = bounds
    if low is None and high is None:
        return None
    distance = torch.arange(sk, device=device)[None, :] - torch.arange(sq, device=device)[:, None]
    hidden = torch.zeros(sq, sk, dtype=torch.bool, device=device)
    if low is not None:
        hidden |= distance < low
    if high is not None:
        hidden |= distance > high
    return hidden
