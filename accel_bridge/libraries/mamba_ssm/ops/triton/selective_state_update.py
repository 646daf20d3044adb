"""One step of a state-space model, for decoding.

Legend: b batch, h heads, p head size, g groups, n state size.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from accel_bridge.kernels import compute_dtype


@torch.no_grad()
def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """``S = exp(dt A) S + dt x B^T``, in place; the result is ``(S C + D x) * silu(z)``.

    Everything may lack the dimension h; computed in float32.

    :param state: [b, h, p, n], or [more, h, p, n] with ``state_batch_indices``.
    :param x: [b, h, p]; ``dt`` and ``z`` too.
    :param A: [h, p, n].
    :param B: [b, g, n]; ``C`` too.
    :param D: [h, p]; ``dt_bias`` too.
    :param dt_softplus: dt is the softplus of what is given, bias included.
    :param state_batch_indices: [b], the row of every batch element; a negative one is padding: it
        changes nothing and gives zeros.
    :returns: like ``x``.
    """
    heads = state.dim() == 4
    states = state if heads else state.unsqueeze(1)
    dtype = compute_dtype(state)

    def wide(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return (tensor if heads else tensor.unsqueeze(dim)).to(dtype)

    live = torch.arange(x.shape[0], device=x.device)
    at = live
    if state_batch_indices is not None:
        live = (state_batch_indices >= 0).nonzero()[:, 0]
        at = state_batch_indices[live].long()
    count = states.shape[1]
    new, step = wide(x, 1)[live], wide(dt, 1)[live]
    write, read = (
        group.repeat_interleave(count // group.shape[1], 1)
        for group in (wide(B, 1)[live], wide(C, 1)[live])
    )
    if dt_bias is not None:
        step = step + wide(dt_bias, 0)
    if dt_softplus:
        step = functional.softplus(step)
    decay = (step.unsqueeze(-1) * wide(A, 0)).exp()
    moved = states[at].to(dtype) * decay + (step * new).unsqueeze(-1) * write.unsqueeze(2)
    states[at] = moved.to(state.dtype)
    found = (moved * read.unsqueeze(2)).sum(-1)  # no product that autocast would round
    if D is not None:
        found = found + new * wide(D, 0)
    if z is not None:
        found = found * functional.silu(wide(z, 1)[live])
    output = torch.zeros_like(x)
    output[live] = found.to(x.dtype).view(-1, *x.shape[1:])
    return output
