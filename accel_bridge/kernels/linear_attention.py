"""Contracts ``state_space_scan`` and ``gated_delta_rule``: recurrences that decay, chunk by chunk.

The first has one decay per head (Mamba-2's SSD); the second forgets, and overwrites what it knows.

Legend: b batch, s sequence length, h heads (key heads), p head size, g groups (h a multiple of g),
n state size, v value heads (a multiple of h), k key size, d value size; c chunks, l chunk length,
r heads, or value heads, of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from accel_bridge.kernels._contract import Contract, compute_dtype

#: l: GEMMs inside a chunk cost s l, those with states s n p / l.
CHUNK: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Decays between positions, each a factor of 0 to 1; 0 between different sequences.

    :param within: [b, c, g, r, l, l]: from position j (last) to a later position i of its chunk.
    :param to_end: [b, c, l, g, r]: from a position to the end of its chunk.
    :param from_start: [b, c, l, g, r]: from the end of the chunk before to a position.
    :param between: [b, g, r, c + 1, c + 1]: from the end of chunk j (last) to the end of chunk i;
        chunk 0 is what was before the first one.
    """

    within: torch.Tensor
    to_end: torch.Tensor
    from_start: torch.Tensor
    between: torch.Tensor


def chunked(tensor: torch.Tensor) -> torch.Tensor:
    """[b, s, ...] as [b, c, l, ...], filled up with zeros."""
    missing = -tensor.shape[1] % CHUNK
    if missing:
        tensor = functional.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, missing))
    chunks: torch.Tensor = tensor.unflatten(1, (-1, CHUNK))
    return chunks


def whole(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """[b, c, l, ...] as [b, s, ...], without what it was filled up with."""
    return tensor.flatten(1, 2)[:, :length]


def segments(
    log_decay: torch.Tensor, ids: torch.Tensor | None, before: torch.Tensor | None
) -> Segments:
    """The decays of a sequence.

    :param log_decay: [b, s, g, r], float32 or float64.
    :param ids: [b, s], numbers of the sequences that are packed; None for one sequence.
    :param before: [b], the sequence that the state before the first position belongs to.
    """
    sums = chunked(log_decay).cumsum(2)  # [b, c, l, g, r]
    last = sums[:, :, -1:]
    to_end, from_start = (last - sums).exp(), sums.exp()
    by_head = sums.permute(0, 1, 3, 4, 2)
    within = _lower(by_head.unsqueeze(-1) - by_head.unsqueeze(-2))
    # Only what lies between is summed: differences of long sums would be less exact.
    totals = functional.pad(last.squeeze(2), (0, 0, 0, 0, 1, 0)).permute(0, 2, 3, 1)
    totals = totals.unsqueeze(-1).expand(*totals.shape, totals.shape[-1])
    between = _lower(totals.tril(-1).cumsum(-2))
    if ids is None or before is None:
        return Segments(within, to_end, from_start, between)
    # What fills up the last chunk belongs to the last sequence.
    filled = torch.cat((ids, ids[:, -1:].expand(-1, -ids.shape[1] % CHUNK)), 1)
    own = filled.unflatten(1, (-1, CHUNK))
    at_end = torch.cat((before.unsqueeze(1), own[:, :, -1]), 1)
    return Segments(
        within * (own.unsqueeze(-1) == own.unsqueeze(-2))[:, :, None, None],
        to_end * (own == at_end[:, 1:, None])[..., None, None],
        from_start * (own == at_end[:, :-1, None])[..., None, None],
        between * (at_end.unsqueeze(-1) == at_end.unsqueeze(-2))[:, None, None],
    )


def _lower(exponents: torch.Tensor) -> torch.Tensor:
    """``exp`` on and below the diagonal, zeros above it."""
    size = exponents.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=exponents.device).triu(1)
    return exponents.masked_fill(above, -torch.inf).exp()


#: Chunks whose states are passed on in one GEMM; longer sequences go block by block.
_BLOCK = 64


def state_space_scan_reference(
    input: torch.Tensor,
    log_decay: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    *,
    step: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``S[t] = exp(log_decay[t]) S[t-1] + step[t] x[t] write[t]^T; y[t] = S[t] read[t]``.

    Then ``(y + skip * x) * silu(gate)``, rounded once. Computed in chunks: GEMMs in the input's
    dtype; decays, states and sums in float32 (float64 for float64).

    :param input: x, [b, s, h, p]; float16, bfloat16, float32 or float64.
    :param log_decay: [b, s, h], at most 0; float32, or float64.
    :param write: B, [b, s, g, n] in the input's dtype; head i uses group ``i // (h / g)``.
    :param read: C, like write.
    :param step: [b, s, h], float32 or float64; default ones.
    :param skip: D, [h] or [h, p], any float dtype.
    :param gate: z, like input.
    :param initial_state: [b, h, p, n], any float dtype, the state before the first position;
        default zeros.
    :param sequence_ids: [b, s] integers, those of one sequence side by side: the state starts
        from zero where the id changes.
    :returns: y [b, s, h, p] in the input's dtype, and the last state [b, h, p, n] in float32
        (float64 for float64).
    :raises ValueError: sizes that do not fit.
    """
    _check_scan(input, log_decay, write, read, initial_state)
    dtype, groups = compute_dtype(input), write.shape[2]
    b, s, h, p = input.shape
    heads = h // groups
    state = input.new_zeros(b, h, p, write.shape[-1], dtype=dtype)
    if initial_state is not None:
        state = initial_state.to(dtype)
    if not s:
        return input.clone(), state
    weighted = input if step is None else (input.to(dtype) * step.unsqueeze(-1)).to(input.dtype)
    state = state.unflatten(1, (groups, heads))
    outputs = []
    for first in range(0, s, CHUNK * _BLOCK):
        part = slice(first, first + CHUNK * _BLOCK)
        before = None if sequence_ids is None else sequence_ids[:, max(0, first - 1)]
        ids = None if sequence_ids is None else sequence_ids[:, part]
        decays = log_decay[:, part].to(dtype).unflatten(-1, (groups, heads))
        output, state = _scan(
            weighted[:, part].unflatten(2, (groups, heads)),
            write[:, part],
            read[:, part],
            state,
            segments(decays, ids, before),
        )
        outputs.append(output)
    output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)).flatten(2, 3)
    if skip is not None:
        factor = skip.to(dtype)
        output = output + input.to(dtype) * (factor if skip.dim() == 2 else factor.unsqueeze(-1))
    if gate is not None:
        output = output * functional.silu(gate.to(dtype))
    return output.to(input.dtype), state.flatten(1, 2)


def _scan(
    x: torch.Tensor, write: torch.Tensor, read: torch.Tensor, state: torch.Tensor, parts: Segments
) -> tuple[torch.Tensor, torch.Tensor]:
    """At most ``_BLOCK`` chunks.

    :param x: [b, s, g, r, p].
    :param state: [b, g, r, p, n].
    :returns: [b, s, g, r, p], and the state after the last position, both in the state's dtype.
    """
    length, dtype = x.shape[1], state.dtype
    x, write, read = (chunked(tensor) for tensor in (x, write, read))
    scores = torch.einsum("bcign,bcjgn->bcgij", read, write).unsqueeze(3)
    within = (scores * parts.within).to(x.dtype)
    output = torch.einsum("bcgrij,bcjgrp->bcigrp", within, x).to(dtype)
    # What every chunk adds to the state, after the state that was there before them.
    kept = (x * parts.to_end.unsqueeze(-1)).to(x.dtype)
    added = torch.einsum("bcjgrp,bcjgn->bcgrpn", kept, write).to(dtype)
    states = torch.cat((state.unsqueeze(1), added), 1)
    states = torch.einsum("bgrzc,bcgrpn->bzgrpn", parts.between, states)
    before = states[:, :-1].to(x.dtype)
    carried = torch.einsum("bcign,bcgrpn->bcigrp", read, before)
    output = output + carried * parts.from_start.unsqueeze(-1)
    return whole(output, length), states[:, -1]


def _check_scan(
    input: torch.Tensor,
    log_decay: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    initial_state: torch.Tensor | None,
) -> None:
    b, s, h, p = input.shape
    if log_decay.shape != (b, s, h):
        raise ValueError(f"log_decay is {list(log_decay.shape)}, not {[b, s, h]}")
    if write.shape != read.shape or write.shape[:2] != (b, s) or h % write.shape[2]:
        raise ValueError(
            f"write {list(write.shape)} and read {list(read.shape)} for input {list(input.shape)}"
        )
    state = (b, h, p, write.shape[-1])
    if initial_state is not None and initial_state.shape != state:
        raise ValueError(f"initial_state is {list(initial_state.shape)}, not {list(state)}")


STATE_SPACE_SCAN = Contract(
    name="state_space_scan",
    reference=state_space_scan_reference,
    formula="S[t] = exp(a[t]) S[t-1] + step[t] x[t] B[t]^T; y[t] = (S[t] C[t] + D x[t]) silu(z[t])",
    source="Dao and Gu 2024, arXiv:2405.21060; semantics of mamba_ssm's mamba_chunk_scan_combined",
)


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

    The output is ``scale * S[t]^T q[t]``. Computed in chunks: GEMMs in the value's dtype;
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
    _check_rule(query, key, value, log_decay, beta, initial_state)
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
    written = torch.einsum("bcgrij,bcjgrd->cbgrid", inverse, (value * beta.unsqueeze(-1)).to(kind))
    wide_key, wide_query = key.unsqueeze(4), query.unsqueeze(4)
    seen = (wide_key * (beta * parts.from_start).unsqueeze(-1)).to(kind)
    seen = torch.einsum("bcgrij,bcjgrk->cbgrik", inverse, seen)
    kept = (wide_key * parts.to_end.unsqueeze(-1)).to(kind).permute(1, 0, 3, 4, 5, 2)
    # From the end of the chunk before to the end of this one.
    carried = parts.between.diagonal(-1, -2, -1).movedim(-1, 0)[..., None, None]
    heads = state.shape[:3]
    flat = (one.flatten(1, 3) for one in (written, seen, kept, carried))
    before, update, state = _Recurrence.apply(*flat, state.flatten(0, 2))
    before, update = (one.unflatten(1, heads).transpose(0, 1) for one in (before, update))
    scores = torch.einsum("bcigk,bcjgk->bcgij", query, key).unsqueeze(3)
    within = (scores * parts.within).to(kind)
    asked = (wide_query * parts.from_start.unsqueeze(-1)).to(kind).permute(0, 1, 3, 4, 2, 5)
    output = within @ update + asked @ before
    return output.permute(0, 1, 4, 2, 3, 5), state.unflatten(0, heads)


class _Recurrence(torch.autograd.Function):
    """``update[c] = written[c] - seen[c] S[c]; S[c + 1] = carried[c] S[c] + kept[c] update[c]``.

    By hand, as autograd would compute the gradients of all but S chunk by chunk too.
    All are [c, n, ...], n = b v; returns S before each chunk, the updates, and the last S.
    """

    @staticmethod
    def forward(
        ctx: Any,
        written: torch.Tensor,
        seen: torch.Tensor,
        kept: torch.Tensor,
        carried: torch.Tensor,
        state: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        states, updates = [], []
        by_chunk = (one.unbind() for one in (written, -seen, kept, carried))
        for new, reads, writes, decay in zip(*by_chunk, strict=True):
            states.append(state)
            updates.append(torch.baddbmm(new, reads, state.to(reads.dtype)))
            state = state * decay + writes.bmm(updates[-1])
        before, update = torch.stack(states), torch.stack(updates)
        kind = update.dtype  # autocast's, where that is on
        ctx.save_for_backward(seen.to(kind), kept.to(kind), carried, before, update)
        return before.to(kind), update, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen, kept, carried, before, update = ctx.saved_tensors
        state, kind = gradients[2], update.dtype
        states, updates = [], []
        by_chunk = (one.unbind() for one in (*gradients[:2], -seen.mT, kept.mT, carried))
        for own, new, reads, writes, decay in reversed(list(zip(*by_chunk, strict=True))):
            states.append(state)
            updates.append(torch.baddbmm(new, writes, state.to(kind)))
            state = state * decay + torch.baddbmm(own, reads, updates[-1])
        after, written = torch.stack(states[::-1]), torch.stack(updates[::-1])
        return (
            written,
            -written @ before.to(kind).mT,
            after.to(kind) @ update.mT,
            (after * before).sum((-2, -1), keepdim=True),
            state,
        )


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
    """``(I + below)^-1``, by blocks of 1, 2, 4, ... rows, with GEMMs only.

    As exact as substitution row by row, unlike sums of powers of ``below``.

    :param below: [..., l, l], zeros on and above the diagonal; l a power of two.
    """
    inverse: torch.Tensor = _UnitLowerInverse.apply(below)
    return inverse


def _check_rule(
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
