"""The gated delta rule of whole sequences.

Legend: b batch, t tokens, h key heads, v value heads, k key size, d value size, n packed
sequences (then b is 1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import GATED_DELTA_RULE, compute_dtype
from accel_bridge.kernels.active import kernel

from ..._packed import check_packed, each_sequence, is_v_first, sequence_ids
from ...modules.conv.causal_conv1d import refuse_context_parallel
from ...modules.l2norm import l2norm


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The contract ``gated_delta_rule``.

    :param q: [b, t, h, k]; ``k`` too.
    :param v: [b, t, v, d].
    :param g: [b, t, v], logarithms of decays; with ``use_gate_in_kernel=True`` they are
        ``-exp(A_log) * softplus(g + dt_bias)``, ``A_log`` and ``dt_bias`` [v].
    :param beta: [b, t, v].
    :param scale: default ``k ** -0.5``.
    :param initial_state: [b or n, v, k, d].
    :param output_final_state: also return the last states, like ``initial_state``, in float32.
    :param use_qk_l2norm_in_kernel: normalise ``q`` and ``k`` first.
    :param use_beta_sigmoid_in_kernel: ``beta`` is its sigmoid's argument.
    :param allow_neg_eigval: that sigmoid is doubled.
    :param state_v_first: states are [.., d, k].
    :param cu_seqlens: [n + 1], where packed sequences begin.
    :param cu_seqlens_cpu: the same on the host; not needed here.
    :param cp_context: not served.
    :returns: [b, t, v, d], and the states or None.
    :raises ValueError: head counts or packed sequences that do not fit.
    :raises NotImplementedError: context parallel.
    """
    state_v_first = is_v_first(state_v_first, kwargs)
    refuse_context_parallel(cp_context)
    check_heads(q, k, v)
    check_packed(q, cu_seqlens, initial_state)
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    if kwargs.get("use_gate_in_kernel", False):
        g = gate(g, kwargs.get("A_log"), kwargs.get("dt_bias"))
    beta = betas(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if initial_state is not None and state_v_first:
        initial_state = initial_state.transpose(-1, -2)
    output, state = packed_rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens
    )
    if not output_final_state:
        return output, None
    return output, state.transpose(-1, -2).contiguous() if state_v_first else state


chunk_gdn = chunk_gated_delta_rule


def packed_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    initial_state: torch.Tensor | None,
    output_final_state: bool,
    cu_seqlens: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule, sequence by sequence where states go in or come out; contiguous results."""
    rule = kernel(GATED_DELTA_RULE)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    ids = None
    if cu_seqlens is None or (initial_state is None and not output_final_state):
        if cu_seqlens is not None:
            ids = sequence_ids(cu_seqlens, v.shape[1])
        form: Any = {"initial_state": initial_state, "sequence_ids": ids}
        output, state = rule(q, k, v, g, beta, scale=scale, **form)
        return output.contiguous(), state.contiguous()
    found = []
    for index, part in enumerate(each_sequence(cu_seqlens)):
        own = None if initial_state is None else initial_state[index : index + 1]
        tensors = (tensor[:, part] for tensor in (q, k, v, g, beta))
        found.append(rule(*tensors, scale=scale, initial_state=own))
    return torch.cat([output for output, _ in found], 1), torch.cat([state for _, state in found])


def check_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """:raises ValueError: head counts that do not fit."""
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f"q and k must have the same number of heads, "
            f"but got q.shape[2]={q.shape[2]} and k.shape[2]={k.shape[2]}"
        )
    if v.shape[2] % q.shape[2]:
        raise ValueError(
            f"For GVA, num_v_heads (HV={v.shape[2]}) must be evenly divisible by "
            f"num_heads (H={q.shape[2]}), but got HV % H = {v.shape[2] % q.shape[2]}"
        )


def gate(g: torch.Tensor, A_log: torch.Tensor | None, dt_bias: torch.Tensor | None) -> torch.Tensor:
    """``-exp(A_log) * softplus(g + dt_bias)`` in float32.

    :raises ValueError: no ``A_log``.
    """
    if A_log is None:
        raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True`.")
    dtype = compute_dtype(g)
    wide = g.to(dtype) if dt_bias is None else g.to(dtype) + dt_bias.to(dtype)
    return -A_log.to(dtype).exp() * functional.softplus(wide)


def betas(beta: torch.Tensor, sigmoid: bool, doubled: bool) -> torch.Tensor:
    """``beta``, or its sigmoid in float32, once or twice.

    :raises ValueError: doubled, but no sigmoid.
    """
    if doubled and not sigmoid:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")
    if not sigmoid:
        return beta
    return beta.to(compute_dtype(beta)).sigmoid() * (2.0 if doubled else 1.0)
