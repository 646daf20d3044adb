"""Contract ``gated_delta_rule``: a linear attention that forgets, and overwrites what it knows.

Legend: b batch, s sequence length, h key heads, v value heads (a multiple of h), k key size,
d value size; within this module also c chunks, l chunk length, g = h groups, r value heads of a
group.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels._chunks import Segments, chunked, segments, whole
from accel_bridge.kernels._contract import Contract, compute_dtype


def gated_delta_rule_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``S[t] = e S[t-1] + beta[t] k[t] (v[t] - e S[t-1]^T k[t])^T`` with ``e = exp(log_decay[t])``.

    The output is ``scale * S[t]^T q[t]``. Computed in chunks: products in the value's dtype;
    decays, states, sums and triangular inverses in float32 (float64 for float64).

    :param query: [b, s, h, k]; float16, bfloat16, float32 or float64.
    :param key: like query; of length at most 1, else the state may grow without bound.
    :param value: [b, s, v, d]; value head i uses key head ``i // (v / h)``.
    :param log_decay: [b, s, v], at most 0, any float dtype.
    :param beta: [b, s, v], 0 to 2, any float dtype.
    :param scale: factor of the output, ``k ** -0.5`` as a rule.
    :param initial_state: [b, v, k, d], any float dtype, the state before the first position;
        default zeros.
    :param sequence_ids: [b, s] integers, those of one sequence side by side: the state starts
        from zero where the id changes.
    :returns: [b, s, v, d] in the value's dtype, and the last state [b, v, k, d] in float32
        (float64 for float64).
    :raises ValueError: sizes that do not fit.
    """
    _check(query, key, value, log_decay, beta, initial_state)
    dtype, groups, length = compute_dtype(value), key.shape[2], value.shape[1]
    b, _, heads, d = value.shape
    grouped = (groups, heads // groups)
    state = value.new_zeros(b, heads, key.shape[-1], d, dtype=dtype)
    if initial_state is not None:
        state = initial_state.to(dtype)
    if not length:
        return value.clone(), state
    before = None if sequence_ids is None else sequence_ids[:, 0]
    parts = segments(log_decay.to(dtype).unflatten(-1, grouped), sequence_ids, before)
    output, state = _chunks(
        chunked(query.to(value.dtype) * scale),
        chunked(key.to(value.dtype)),
        chunked(value.unflatten(2, grouped)),
        chunked(beta.to(dtype).unflatten(-1, grouped)),
        state.unflatten(1, grouped),
        parts,
    )
    return whole(output, length).flatten(2, 3), state.flatten(1, 2)


def _chunks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    parts: Segments,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:param query: [b, c, l, g, k], and key; value: [b, c, l, g, r, d]; beta: [b, c, l, g, r].

    :param state: [b, g, r, k, d].
    :returns: [b, c, l, g, r, d] in the value's dtype, and the last state.
    """
    kind = value.dtype
    # Row i: how much of v[i] the writes before it in the chunk leave to be written.
    overlap = torch.einsum("bcigk,bcjgk->bcgij", key, key).unsqueeze(3)
    by_row = beta.permute(0, 1, 3, 4, 2).unsqueeze(-1)
    inverse = unit_lower_inverse((overlap * parts.within * by_row).tril(-1)).to(kind)
    written = torch.einsum("bcgrij,bcjgrd->bcgrid", inverse, (value * beta.unsqueeze(-1)).to(kind))
    wide_key, wide_query = key.unsqueeze(4), query.unsqueeze(4)
    seen = (wide_key * (beta * parts.from_start).unsqueeze(-1)).to(kind)
    seen = torch.einsum("bcgrij,bcjgrk->bcgrik", inverse, seen)
    kept = (wide_key * parts.to_end.unsqueeze(-1)).to(kind).permute(0, 1, 3, 4, 5, 2)
    # From the end of the chunk before to the end of this one.
    carried = parts.between.diagonal(-1, -2, -1)
    states, updates = [], []
    for chunk in range(value.shape[1]):
        states.append(state.to(kind))
        update = written[:, chunk] - seen[:, chunk] @ states[-1]
        updates.append(update)
        added = kept[:, chunk] @ update
        state = state * carried[..., chunk, None, None] + added
    before, update = torch.stack(states, 1), torch.stack(updates, 1)
    scores = torch.einsum("bcigk,bcjgk->bcgij", query, key).unsqueeze(3)
    within = (scores * parts.within).to(kind)
    asked = (wide_query * parts.from_start.unsqueeze(-1)).to(kind).permute(0, 1, 3, 4, 2, 5)
    output = within @ update + asked @ before
    return output.permute(0, 1, 4, 2, 3, 5), state


class _UnitLowerInverse(torch.autograd.Function):
    """``(I + below)^-1``; the gradient needs no more than the result."""

    @staticmethod
    def forward(ctx: Any, below: torch.Tensor) -> torch.Tensor:
        size, batch = below.shape[-1], below.shape[:-2]
        inverse = below.new_ones(*batch, size, 1, 1)
        rows = 1
        while rows < size:
            count = size // (2 * rows)
            pairs = below.reshape(*batch, count, 2 * rows, count, 2 * rows)
            corners = pairs.diagonal(0, -4, -2).movedim(-1, -3)[..., rows:, :rows]
            first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
            lower = torch.cat((-second @ corners @ first, second), -1)
            upper = torch.cat((first, torch.zeros_like(first)), -1)
            inverse = torch.cat((upper, lower), -2)
            rows *= 2
        inverse = inverse.squeeze(-3)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (inverse,) = ctx.saved_tensors
        transposed: torch.Tensor = inverse.mT
        return -(transposed @ gradients[0] @ transposed)


def unit_lower_inverse(below: torch.Tensor) -> torch.Tensor:
    """``(I + below)^-1``, by blocks of 1, 2, 4, ... rows, with products only.

    As exact as substitution row by row, unlike sums of powers of ``below``.

    :param below: [..., l, l], zeros on and above the diagonal; l a power of two.
    """
    inverse: torch.Tensor = _UnitLowerInverse.apply(below)  # type: ignore[no-untyped-call]
    return inverse


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> None:
    b, s, heads, d = value.shape
    if query.shape != key.shape or key.shape[:2] != (b, s) or heads % key.shape[2]:
        raise ValueError(
            f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        )
    if log_decay.shape != (b, s, heads) or beta.shape != (b, s, heads):
        raise ValueError(
            f"log_decay {list(log_decay.shape)}, beta {list(beta.shape)}, not {[b, s, heads]}"
        )
    state = (b, heads, key.shape[-1], d)
    if initial_state is not None and initial_state.shape != state:
        raise ValueError(f"initial_state is {list(initial_state.shape)}, not {list(state)}")


GATED_DELTA_RULE = Contract(
    name="gated_delta_rule",
    reference=gated_delta_rule_reference,
    formula="S[t] = e[t] S[t-1] + beta[t] k[t] (v[t] - e[t] S[t-1]^T k[t])^T; "
    "y[t] = scale S[t]^T q[t]",
    source="Yang et al. 2024, arXiv:2412.06464; semantics of fla.ops.gated_delta_rule",
)
