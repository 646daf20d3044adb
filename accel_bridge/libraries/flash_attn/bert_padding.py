"""Taking padding out of batches, and putting it back.

Legend: b batch, s sequence, t tokens that are not padding.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def __getattr__(name: str) -> Any:
    if name == "rearrange":  # callers import einops' function from here
        return import_module("einops").rearrange
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows [t, ..] of [rows, ..]."""
    return input.index_select(0, indices)


def index_put_first_axis(
    values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int
) -> torch.Tensor:
    """[first_axis_dim, ..] with rows [t, ..] at ``indices`` and zeros elsewhere."""
    whole = values.new_zeros(first_axis_dim, *values.shape[1:])
    return whole.index_copy(0, indices, values)


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The tokens of [b, s, ..] that ``attention_mask`` [b, s] keeps (1 = keep).

    :param unused_mask: [b, s], tokens that are kept without being used.
    :returns: tokens [t, ..], their places in [b * s], cumulative lengths int32 [b + 1], the longest
        length, and used lengths int32 [b].
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    places = torch.nonzero(kept.flatten()).flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    tokens = index_first_axis(hidden_states.flatten(0, 1), places)
    used = attention_mask.sum(-1, dtype=torch.int32)
    return tokens, places, ends, int(lengths.max()), used


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """[b, s, ..] with the tokens [t, ..] at ``indices`` and zeros elsewhere."""
    whole = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return torch.unflatten(whole, 0, (batch, seqlen))
