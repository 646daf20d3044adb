"""Linear attention with one decay per head: a state-space scan.

Legend: b batch, t tokens, h heads, k key size, d value size, n packed sequences (then b is 1).
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import STATE_SPACE_SCAN, compute_dtype
from accel_bridge.kernels.active import kernel

from ..._packed import check_packed, each_sequence, is_v_first, sequence_ids


def chunk_simple_gla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """``S[t] = exp(g[t]) S[t-1] + k[t] v[t]^T``, read with ``scale * q[t]``.

    :param q: [b, t, h, k]; ``k`` too.
    :param v: [b, t, h, d].
    :param g: [b, t, h], logarithms of decays.
    :param g_gamma: [h], the same decay everywhere; added to ``g``.
    :param scale: default ``k ** -0.5``.
    :param initial_state: [b or n, h, k, d].
    :param output_final_state: also return the last states, like ``initial_state``, in float32.
    :param state_v_first: states are [.., d, k].
    :param cu_seqlens: [n + 1], where packed sequences begin.
    :param cu_seqlens_cpu: the same on the host; not needed here.
    :returns: [b, t, h, d], and the states or None.
    """
    state_v_first = is_v_first(state_v_first, kwargs)
    check_packed(q, cu_seqlens, initial_state)
    decay = torch.zeros_like(v[..., 0], dtype=compute_dtype(v))
    for part in (g, g_gamma):
        if part is not None:
            decay = decay + part.to(decay.dtype)
    scan = kernel(STATE_SPACE_SCAN)
    read = q * (k.shape[-1] ** -0.5 if scale is None else scale)
    if initial_state is not None and not state_v_first:
        initial_state = initial_state.transpose(-1, -2)
    if cu_seqlens is None:
        output, state = scan(v, decay, k, read, initial_state=initial_state)
    elif initial_state is None and not output_final_state:
        ids = sequence_ids(cu_seqlens, v.shape[1])
        output, state = scan(v, decay, k, read, sequence_ids=ids)
    else:
        found = []
        for index, part_of in enumerate(each_sequence(cu_seqlens)):
            own = None if initial_state is None else initial_state[index : index + 1]
            tensors = (tensor[:, part_of] for tensor in (v, decay, k, read))
            found.append(scan(*tensors, initial_state=own))
        output = torch.cat([part for part, _ in found], 1)
        state = torch.cat([part for _, part in found])
    if not output_final_state:
        return output.contiguous(), None
    state = state if state_v_first else state.transpose(-1, -2)
    return output.contiguous(), state.contiguous()
