"""causal_conv1d's interface on the active backend's kernels.

The convolution of a whole sequence, and of the positions that follow a cached state. The extension
below, ``causal_conv1d_cuda``, has forward and backward apart; up to 1.5 its functions make their
results, from then on they write into given tensors, and both forms are served. mamba_ssm's own
functions call neither, but ``cpp_functions``, which have kept the first form.

Legend: b batch, d channels, s sequence length, w width.
Source of the extension: causal_conv1d/csrc/causal_conv1d.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accel_bridge.kernels import CAUSAL_CONVOLUTION, convolution_state
from accel_bridge.kernels.active import kernel
from accel_bridge.libraries._library import LIBRARIES

__version__ = LIBRARIES["causal_conv1d"].version

#: Public module -> the module that implements it, here this one, and its names.
MODULES = {
    "causal_conv1d.causal_conv1d_interface": (
        "",
        "causal_conv1d_fn causal_conv1d_ref causal_conv1d_update causal_conv1d_update_ref",
    ),
    "causal_conv1d": ("", "causal_conv1d_fn causal_conv1d_update"),
    "causal_conv1d.causal_conv1d_varlen": (
        "",
        "causal_conv1d_varlen_states causal_conv1d_varlen_states_ref",
    ),
    "causal_conv1d.cpp_functions": (
        "",
        "causal_conv1d_bwd_function causal_conv1d_fwd_function causal_conv1d_update_function",
    ),
    "causal_conv1d_cuda": ("", "causal_conv1d_bwd causal_conv1d_fwd"),
}


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The contract ``causal_convolution``.

    :param x: [b, d, s], any strides.
    :param weight: [d, w].
    :param bias: [d].
    :param seq_idx: [b, s]: positions see their own sequence only.
    :param initial_states: [b, d, w - 1], what came before a row's first sequence.
    :param return_final_states: also return [b, d, w - 1], what a call for the positions that
        follow needs as its ``initial_states``.
    :param final_states_out: where to write that.
    :param activation: None, ``silu`` or ``swish``.
    :raises NotImplementedError: another activation.
    """
    silu = is_silu(activation)
    if seq_idx is not None:
        assert not return_final_states, "If seq_idx is not None, we don't return final_states_out"
    output = kernel(CAUSAL_CONVOLUTION)(
        x, weight, bias, silu=silu, initial_state=initial_states, sequence_ids=seq_idx
    )
    if not return_final_states:
        return output
    return output, _state(x, weight, initial_states, final_states_out)


def causal_conv1d_ref(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: torch.Tensor | None = None,
    activation: str | None = None,
    seq_idx: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """As :func:`causal_conv1d_fn`, by the contract's reference in the weight's dtype."""
    output = CAUSAL_CONVOLUTION.reference(
        x.to(weight.dtype),
        weight,
        bias,
        silu=is_silu(activation),
        initial_state=initial_states,
        sequence_ids=seq_idx,
    ).to(x.dtype)
    if not return_final_states:
        return output
    return output, _state(x, weight, initial_states, final_states_out)


def _state(
    x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor | None, into: torch.Tensor | None
) -> torch.Tensor:
    state = convolution_state(x, weight.shape[1], before)
    return state if into is None else into.copy_(state)


@torch.no_grad()
def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: torch.Tensor | None = None,
    conv_state_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """The positions ``x`` after those in ``conv_state``, which moves on in place.

    :param x: [b, d] or [b, d, s].
    :param conv_state: [b, d, k] with k >= w - 1, or [more, d, k] with ``conv_state_indices``.
    :param weight: [d, w].
    :param bias: [d].
    :param activation: None, ``silu`` or ``swish``.
    :param cache_seqlens: [b]: the state is a ring, and ``x`` goes to this place in it (modulo k).
    :param conv_state_indices: [b], the row of every batch element; a negative one is padding: it
        changes nothing and gives zeros.
    :returns: like ``x``.
    """
    return _update(
        kernel(CAUSAL_CONVOLUTION),
        (x, conv_state, weight, bias),
        is_silu(activation),
        cache_seqlens,
        conv_state_indices,
    )


@torch.no_grad()
def causal_conv1d_update_ref(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`causal_conv1d_update`, by the contract's reference in the weight's dtype."""
    tensors = (x.to(weight.dtype), conv_state, weight, bias)
    silu = is_silu(activation)
    return _update(CAUSAL_CONVOLUTION.reference, tensors, silu, cache_seqlens, None).to(x.dtype)


def _update(
    convolution: Callable[..., torch.Tensor],
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None],
    silu: bool,
    cache_seqlens: torch.Tensor | None,
    conv_state_indices: torch.Tensor | None,
) -> torch.Tensor:
    x, conv_state, weight, bias = tensors
    rows = x.unsqueeze(-1) if x.dim() == 2 else x
    live = torch.arange(rows.shape[0], device=x.device)
    at = live
    if conv_state_indices is not None:
        live = (conv_state_indices >= 0).nonzero()[:, 0]
        at = conv_state_indices[live].long()
    new = rows[live]
    state = conv_state[at]
    size, width = state.shape[-1], weight.shape[1]
    if cache_seqlens is None:
        past = state[..., size - width + 1 :]
        state = torch.cat((state, new.to(state.dtype)), -1)[..., -size:]
    else:
        start = cache_seqlens[live].long().unsqueeze(1)
        before = _ring(start + torch.arange(1 - width, 0, device=x.device), state)
        past = state.gather(2, before)
        after = _ring(start + torch.arange(new.shape[-1], device=x.device), state)
        state = state.scatter(2, after, new.to(state.dtype))
    found = convolution(new, weight, bias, silu=silu, initial_state=past)
    conv_state[at] = state
    output = torch.zeros_like(rows)
    output[live] = found
    return output.view(x.shape)


def is_silu(activation: str | None) -> bool:
    """Whether ``activation`` is SiLU; None is no activation.

    :raises NotImplementedError: anything else.
    """
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError("activation must be None, silu, or swish")
    return activation is not None


def _ring(places: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """Places [b, s] in a ring of states [b, d, k], for every channel."""
    wrapped = torch.remainder(places, state.shape[-1]).unsqueeze(1)
    return wrapped.expand(-1, state.shape[1], -1)


@torch.no_grad()
def causal_conv1d_varlen_states(
    x: torch.Tensor, cu_seqlens: torch.Tensor, state_len: int
) -> torch.Tensor:
    """The last ``state_len`` positions of every sequence, zeros before its first one.

    :param x: [tokens, d].
    :param cu_seqlens: [sequences + 1], rising from 0.
    :returns: [sequences, d, state_len].
    """
    starts, ends = cu_seqlens[:-1, None], cu_seqlens[1:, None]
    places = ends + torch.arange(-state_len, 0, device=x.device)
    states = x[places.clamp(min=0)].masked_fill((places < starts).unsqueeze(-1), 0.0)
    return states.transpose(1, 2)


causal_conv1d_varlen_states_ref = causal_conv1d_varlen_states


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


def causal_conv1d_fwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    final_states_out: Tensor | None,
    silu_activation: bool,
) -> Tensor:
    """:func:`causal_conv1d_fwd` of a new tensor."""
    rest = (final_states_out, silu_activation)
    return causal_conv1d_fwd(x, weight, bias, seq_idx, initial_states, *rest)


def causal_conv1d_bwd_function(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dout: Tensor,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    dfinal_states: Tensor | None,
    dx: Tensor | None,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> list[Tensor | None]:
    """:func:`causal_conv1d_bwd`, with the gradient of x in ``dx`` if that is given."""
    states = (seq_idx, initial_states, dfinal_states)
    rest = (dx, return_dinitial_states, silu_activation)
    return causal_conv1d_bwd(x, weight, bias, dout, *states, *rest)


@torch.no_grad()
def causal_conv1d_update_function(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
) -> Tensor:
    """:func:`causal_conv1d_update` of [b, d, s]."""
    tensors = (x, conv_state, weight, bias)
    convolution = kernel(CAUSAL_CONVOLUTION)
    return _update(convolution, tensors, silu_activation, cache_seqlens, conv_state_indices)
