"""Contract ``state_space_scan``: a linear recurrence with one decay per head (Mamba-2's SSD).

Legend: b batch, s sequence length, h heads, p head size, g groups (h a multiple of g), n state
size; within this module also c chunks, l chunk length, r heads of a group.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels._chunks import CHUNK, Segments, chunked, segments, whole
from accel_bridge.kernels._contract import Contract, compute_dtype

#: Chunks whose states are passed on in one product; longer sequences go block by block.
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

    Then ``(y + skip * x) * silu(gate)``, rounded once. Computed in chunks: products in the input's
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
    _check(input, log_decay, write, read, initial_state)
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


def _check(
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
