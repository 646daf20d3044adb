"""Linear attentions: the gated delta rule and product, and one with a decay for each head.

Legend: b batch, t tokens, h (key) heads, v value heads, k key size, d value size, m writes of a
token, n packed sequences (then b is 1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels import GATED_DELTA_RULE, STATE_SPACE_SCAN, compute_dtype
from accel_bridge.kernels.active import kernel_or_warning

from ._modules import (
    check_packed,
    each_sequence,
    is_v_first,
    l2norm,
    refuse_context_parallel,
    sequence_ids,
    side_by_side,
)

_SLOW = (
    "linear attention runs in PyTorch's GEMMs; on an H200, flash-linear-attention's Triton kernels "
    "take a small part of the time: pip install flash-linear-attention (Hopper needs Triton 3.7.1)"
)


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
    chunk_indices: torch.Tensor | None = None,
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
    :param cu_seqlens_cpu: the same on the host; not needed here, nor is ``chunk_indices``.
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
    rule = kernel_or_warning(GATED_DELTA_RULE, _SLOW)
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
    output = side_by_side([output for output, _ in found], v.shape[1])
    return output, torch.cat([state for _, state in found])


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


def fused_gdn_gate(
    g: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    output_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """:func:`gate`, in ``output_dtype``."""
    return gate(g, A_log, dt_bias).to(output_dtype)


def betas(beta: torch.Tensor, sigmoid: bool, doubled: bool) -> torch.Tensor:
    """``beta``, or its sigmoid in float32, once or twice.

    :raises ValueError: doubled, but no sigmoid.
    """
    if doubled and not sigmoid:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")
    if not sigmoid:
        return beta
    return beta.to(compute_dtype(beta)).sigmoid() * (2.0 if doubled else 1.0)


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
    """:func:`chunk_gated_delta_rule` in float32, without gradients.

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
    output = side_by_side([torch.stack(outputs, 1)], v.shape[1]).to(v.dtype)
    if not output_final_state:
        return output, None
    final = torch.cat(states)
    return output, final.transpose(-1, -2).contiguous() if state_v_first else final


fused_recurrent_gdn = fused_recurrent_gated_delta_rule


def chunk_gated_delta_product(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    beta: torch.Tensor,
    num_householder: int,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    cp_context: Any = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gated delta rule of m times as many tokens; the first of m decays, the last is read.

    :param q: [b, t, h, k].
    :param k: [b, t m, h, k].
    :param v: [b, t m, h, d].
    :param g: [b, t, h], logarithms of decays; None for none.
    :param beta: [b, t m, h].
    :param num_householder: m.
    :param scale: default ``k ** -0.5``.
    :param initial_state: [b or n, h, k, d].
    :param output_final_state: also return the last states, like ``initial_state``, in float32.
    :param use_qk_l2norm_in_kernel: normalise ``q`` and ``k`` first.
    :param cu_seqlens: [n + 1], where packed sequences begin, in tokens.
    :param cu_seqlens_cpu: the same on the host; not needed here.
    :returns: [b, t, h, d], and the states or None.
    """
    refuse_context_parallel(cp_context)
    writes = num_householder
    b, t, h, _ = q.shape
    assert k.shape == (b, t * writes, h, q.shape[-1])
    assert v.shape[:3] == beta.shape == (b, t * writes, h)
    check_packed(q, cu_seqlens, initial_state)
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    reads = q.new_zeros(b, t, writes, h, q.shape[-1])
    reads[:, :, -1] = q
    decays = beta.new_zeros(b, t, writes, h, dtype=beta.dtype if g is None else g.dtype)
    if g is not None:
        assert g.shape == (b, t, h)
        decays[:, :, 0] = g
    output, state = packed_rule(
        reads.flatten(1, 2),
        k,
        v,
        decays.flatten(1, 2),
        beta,
        scale,
        initial_state,
        output_final_state,
        None if cu_seqlens is None else cu_seqlens * writes,
    )
    return output[:, writes - 1 :: writes].contiguous(), state if output_final_state else None


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
    scan = kernel_or_warning(STATE_SPACE_SCAN, _SLOW)
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
        output = side_by_side([part for part, _ in found], v.shape[1])
        state = torch.cat([part for _, part in found])
    if not output_final_state:
        return output.contiguous(), None
    state = state if state_v_first else state.transpose(-1, -2)
    return output.contiguous(), state.contiguous()


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
    """:func:`chunk_simple_gla`, which gives the same in fewer steps.

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


def fused_chunk_simple_gla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """:func:`chunk_simple_gla`; upstream's reads its inputs once."""
    return chunk_simple_gla(
        q, k, v, g, g_gamma, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens
    )


def parallel_simple_gla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None = None,
    scale: float | None = None,
    output_attentions: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """:func:`chunk_simple_gla` without states.

    :param output_attentions: also return the scores; no gradient goes through them.
    :returns: [b, t, h, d], and [b, h, t, t] like ``q``, or None.
    :raises ValueError: scores of packed sequences.
    """
    if output_attentions and cu_seqlens is not None:
        raise ValueError("output_attentions=True is not supported with variable-length sequences")
    output, _ = chunk_simple_gla(q, k, v, g, scale=scale, cu_seqlens=cu_seqlens, **kwargs)
    return output, _scores(q, k, g, scale) if output_attentions else None


@torch.no_grad()
def _scores(
    q: torch.Tensor, k: torch.Tensor, g: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    dtype = compute_dtype(q)
    scores = torch.einsum("bihk,bjhk->bhij", q.to(dtype), k.to(dtype))
    scores = scores * (k.shape[-1] ** -0.5 if scale is None else scale)
    if g is not None:
        total = g.to(dtype).cumsum(1).transpose(1, 2)
        scores = scores * (total[..., :, None] - total[..., None, :]).tril().exp()
    return scores.tril().to(q.dtype)
