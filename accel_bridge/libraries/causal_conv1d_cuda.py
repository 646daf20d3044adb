"""Shim for the extension under causal_conv1d: forward and backward apart.

Up to 1.5 the functions make their results, from then on they write into given tensors; both forms
are served. Legend: b batch, d channels, s sequence length, w width.
Source: causal_conv1d/csrc/causal_conv1d.cpp.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import CAUSAL_CONVOLUTION, convolution_state
from accel_bridge.kernels.active import kernel

Tensor = torch.Tensor


@torch.no_grad()
def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    *rest: Any,
) -> Tensor:
    """[b, d, s] of x [b, d, s] and weight [d, w].

    :param rest: [b, d, s] to write to, in the newer form; final states to write, silu.
    """
    *into, final, silu = rest
    found = kernel(CAUSAL_CONVOLUTION)(
        x, weight, bias, silu=silu, initial_state=initial_states, sequence_ids=seq_idx
    )
    if final is not None:
        final.copy_(convolution_state(x, weight.shape[1], initial_states))
    return into[0].copy_(found) if into else found


def causal_conv1d_bwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dout: Tensor,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dfinal_states: Tensor | None,
    *rest: Any,
) -> list[Tensor | None]:
    """Gradients of x, weight, bias and the initial states.

    :param rest: dx or None, whether the last gradient is wanted, silu; in the newer form the four
        tensors to write to (any may be None), silu.
    """
    *into, silu = rest
    if len(into) == 2:
        into = [into[0], None, None, None]
    leaves = [
        None if one is None else one.detach().requires_grad_()
        for one in (x, weight, bias, initial_states)
    ]
    rows, kernels, shift, state = leaves
    assert rows is not None
    assert kernels is not None
    with torch.enable_grad():
        results = [
            kernel(CAUSAL_CONVOLUTION)(
                rows, kernels, shift, silu=silu, initial_state=state, sequence_ids=seq_idx
            )
        ]
        if dfinal_states is not None:
            results.append(convolution_state(rows, kernels.shape[1], state))
    given = [one for one in leaves if one is not None]
    grads = (dout,) if dfinal_states is None else (dout, dfinal_states)
    found = iter(torch.autograd.grad(results, given, grads))
    gradients = [None if one is None else next(found) for one in leaves]
    return [
        one if place is None or one is None else place.copy_(one)
        for one, place in zip(gradients, into, strict=True)
    ]
