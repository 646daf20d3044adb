"""The gated delta rule token by token, for decoding.

Legend: as in :mod:`.chunk`.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import compute_dtype

from ..._packed import check_packed, each_sequence, is_v_first
from ...modules.l2norm import l2norm
from .chunk import betas, check_heads, gate


@torch.no_grad()
def fused_recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
    gv: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """:func:`.chunk.chunk_gated_delta_rule` in float32, without gradients.

    :param gk: [b, t, v, k], logarithms of decays of the state's rows.
    :param gv: [b, t, v, d], of its columns.
    """
    state_v_first = is_v_first(state_v_first, kwargs)
    check_heads(q, k, v)
    check_packed(q, cu_seqlens, initial_state)
    if use_gate_in_kernel:
        if g is None:
            raise ValueError("`g` must be provided when `use_gate_in_kernel=True`.")
        g = gate(g, A_log, dt_bias)
    beta = torch.ones_like(v[..., 0]) if beta is None else beta
    beta = betas(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    dtype, times = compute_dtype(v), v.shape[2] // k.shape[2]
    query, key, value = (tensor.to(dtype) for tensor in (q, k, v))
    if use_qk_l2norm_in_kernel:
        query, key = l2norm(query), l2norm(key)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    query, key = (tensor.repeat_interleave(times, 2) for tensor in (query * scale, key))
    # The logarithm of the decay of [.., k, d].
    decay = torch.zeros_like(beta, dtype=dtype)[..., None, None]
    for gates, dims in ((g, (-1, -1)), (gk, (-1,)), (gv, (-2,))):
        if gates is not None:
            wide = gates.to(dtype)
            for dim in dims:
                wide = wide.unsqueeze(dim)
            decay = decay + wide
    parts = [slice(None)] if cu_seqlens is None else list(each_sequence(cu_seqlens))
    outputs, states = [], []
    for index, part in enumerate(parts):
        state = value.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
        if initial_state is not None:
            own = initial_state if cu_seqlens is None else initial_state[index : index + 1]
            state = (own.transpose(-1, -2) if state_v_first else own).to(dtype)
        steps = (tensor[:, part].unbind(1) for tensor in (query, key, value, decay, beta))
        for q_t, k_t, v_t, decay_t, beta_t in zip(*steps, strict=True):
            state = state * decay_t.exp()
            known = (state * k_t.unsqueeze(-1)).sum(-2)
            update = (v_t - known) * beta_t.unsqueeze(-1)
            state = state + k_t.unsqueeze(-1) * update.unsqueeze(-2)
            outputs.append((state * q_t.unsqueeze(-1)).sum(-2))
        states.append(state)
    output = torch.stack(outputs, 1).to(v.dtype)
    if not output_final_state:
        return output, None
    final = torch.cat(states)
    return output, final.transpose(-1, -2).contiguous() if state_v_first else final


fused_recurrent_gdn = fused_recurrent_gated_delta_rule
