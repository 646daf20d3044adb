"""The recurrences of the sequence contracts, one position after the other, as their papers say."""

from __future__ import annotations

import torch
from torch.nn import functional


def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """[b, d, s]: every position by itself."""
    batch, _, length = x.shape
    output = torch.zeros_like(x)
    width = weight.shape[1]
    for item in range(batch):
        for t in range(length):
            for tap in range(width):
                source = t - width + 1 + tap
                if source >= 0:
                    seen = x[item, :, source]
                    if sequence_ids is not None and (
                        sequence_ids[item, source] != sequence_ids[item, t]
                    ):
                        continue
                elif initial_state is not None and (
                    sequence_ids is None or sequence_ids[item, t] == sequence_ids[item, 0]
                ):
                    seen = initial_state[item, :, source]
                else:
                    continue
                output[item, :, t] += weight[:, tap] * seen
    if bias is not None:
        output = output + bias[:, None]
    if silu:
        output = functional.silu(output)
    if sequence_ids is not None:
        output = output * (sequence_ids >= 0)[:, None]
    return output


def _continues(ids: torch.Tensor | None, t: int) -> torch.Tensor | float:
    if ids is None or t == 0:
        return 1.0
    return (ids[:, t] == ids[:, t - 1]).double()[:, None, None, None]


def scan(
    x: torch.Tensor,
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
    """[b, s, h, p] and the last state [b, h, p, n]."""
    b, s, h, p = x.shape
    times = h // write.shape[2]
    write, read = (tensor.repeat_interleave(times, 2) for tensor in (write, read))
    state = x.new_zeros(b, h, p, write.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for t in range(s):
        weighted = x[:, t] if step is None else x[:, t] * step[:, t, :, None]
        state = state * _continues(sequence_ids, t) * log_decay[:, t, :, None, None].exp()
        state = state + weighted[..., None] * write[:, t, :, None]
        outputs.append((state * read[:, t, :, None]).sum(-1))
    output = torch.stack(outputs, 1)
    if skip is not None:
        output = output + x * (skip if skip.dim() == 2 else skip[:, None])
    if gate is not None:
        output = output * functional.silu(gate)
    return output, state


def delta_rule(
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
    """[b, s, v, d] and the last state [b, v, k, d]."""
    b, s, heads, d = value.shape
    times = heads // key.shape[2]
    query, key = (tensor.repeat_interleave(times, 2) for tensor in (query, key))
    state = initial_state
    if state is None:
        state = value.new_zeros(b, heads, key.shape[-1], d)
    outputs = []
    for t in range(s):
        state = state * _continues(sequence_ids, t) * log_decay[:, t, :, None, None].exp()
        known = (state * key[:, t, ..., None]).sum(-2)
        update = (value[:, t] - known) * beta[:, t, :, None]
        state = state + key[:, t, ..., None] * update[..., None, :]
        outputs.append(scale * (state * query[:, t, ..., None]).sum(-2))
    return torch.stack(outputs, 1), state
