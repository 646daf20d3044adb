"""Packed sequences: one row of tokens, and where each sequence begins.

Legend: t tokens, n sequences.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import torch


def sequence_ids(cu_seqlens: torch.Tensor, length: int) -> torch.Tensor:
    """[1, t]: the number of every token's sequence, without waiting for the device.

    :param cu_seqlens: [n + 1], rising from 0 to t.
    """
    begins = torch.zeros(length + 1, dtype=torch.int32, device=cu_seqlens.device)
    ones = torch.ones_like(cu_seqlens[1:], dtype=torch.int32)
    # Sequences without tokens begin where the next one does.
    return begins.index_add(0, cu_seqlens[1:].long(), ones)[:-1].cumsum(0).unsqueeze(0)


def each_sequence(cu_seqlens: torch.Tensor) -> Iterator[slice]:
    """Where every sequence stands; waits for the device."""
    ends = cast(list[int], cu_seqlens.tolist())
    return (slice(*pair) for pair in pairwise(ends))


def check_packed(
    tokens: torch.Tensor, cu_seqlens: torch.Tensor | None, initial_state: torch.Tensor | None
) -> None:
    """:raises ValueError: more than one row of packed tokens, or too few or many states."""
    if cu_seqlens is None:
        return
    if tokens.shape[0] != 1:
        raise ValueError(
            f"The batch size is expected to be 1 rather than {tokens.shape[0]} when using "
            f"`cu_seqlens`. Please flatten variable-length inputs before processing."
        )
    if initial_state is not None and initial_state.shape[0] != len(cu_seqlens) - 1:
        raise ValueError(
            f"The number of initial states is expected to be equal to the number of input "
            f"sequences, i.e., {len(cu_seqlens) - 1} rather than {initial_state.shape[0]}."
        )


def is_v_first(state_v_first: bool, options: dict[str, Any]) -> bool:
    """Whether states are [.., d, k], by its name of today or its former one.

    :raises ValueError: both are given.
    """
    if "transpose_state_layout" not in options:
        return state_v_first
    if state_v_first:
        raise ValueError(
            "Cannot pass both `state_v_first` and the deprecated `transpose_state_layout`."
        )
    warnings.warn(
        "`transpose_state_layout` is deprecated and renamed to `state_v_first`.",
        DeprecationWarning,
        stacklevel=3,
    )
    return bool(options["transpose_state_layout"])
