"""Linear attention with one decay per head, also from the last token to the first."""

from __future__ import annotations

from typing import Any

import torch

from .chunk import chunk_simple_gla


def fused_recurrent_simple_gla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    reverse: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """:func:`.chunk.chunk_simple_gla`, which gives the same in fewer steps.

    :param reverse: run from the last token to the first.
    """
    if reverse:
        q, k, v = (tensor.flip(1) for tensor in (q, k, v))
        g = None if g is None else g.flip(1)
        if cu_seqlens is not None:
            # The sequences come in reverse too, and so do their states.
            cu_seqlens = cu_seqlens[-1] - cu_seqlens.flip(0)
            initial_state = None if initial_state is None else initial_state.flip(0)
    output, state = chunk_simple_gla(
        q,
        k,
        v,
        g,
        g_gamma,
        scale,
        initial_state,
        output_final_state,
        state_v_first,
        cu_seqlens,
        **kwargs,
    )
    if reverse:
        output = output.flip(1)
        if state is not None and cu_seqlens is not None:
            state = state.flip(0)
    return output, state
