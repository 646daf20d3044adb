"""The states of packed sequences."""

from __future__ import annotations

import torch


@torch.no_grad()
def causal_conv1d_varlen_states(
    x: torch.Tensor, cu_seqlens: torch.Tensor, state_len: int
) -> torch.Tensor:
    """The last ``state_len`` positions of every sequence, zeros before its first one.

    :param x: [tokens, d].
    :param cu_seqlens: [sequences + 1], rising from 0.
    :returns: [sequences, d, state_len].
    """
    starts, ends = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    places = ends + torch.arange(-state_len, 0, device=x.device)
    states = x[places.clamp(min=0)].masked_fill((places < starts).unsqueeze(-1), 0.0)
    return states.transpose(1, 2)


causal_conv1d_varlen_states_ref = causal_conv1d_varlen_states
