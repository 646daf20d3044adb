"""The causal convolution of channels-last sequences.

Legend: b batch, t tokens, d channels, w width, n packed sequences.
"""

from __future__ import annotations

from typing import Any

import torch

from accel_bridge.kernels import CAUSAL_CONVOLUTION, convolution_state
from accel_bridge.kernels.active import kernel

from ..._packed import check_packed, sequence_ids


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    backend: str | None = "triton",
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The contract ``causal_convolution``.

    :param x: [b, t, d]; b is 1 with ``cu_seqlens``.
    :param weight: [d, w].
    :param bias: [d].
    :param residual: like ``x``, added at the end.
    :param initial_state: [b, d, w] or [n, d, w], the inputs that came before.
    :param output_final_state: also return the inputs that the tokens that follow need.
    :param activation: None, ``silu`` or ``swish``.
    :param backend: of the real library; the bridge's backend serves all of them.
    :param cu_seqlens: [n + 1], where packed sequences begin.
    :param cu_seqlens_cpu: the same on the host; not needed here, nor is ``chunk_indices``.
    :param cp_context: not served.
    :returns: like ``x``, and the state or None.
    :raises NotImplementedError: context parallel.
    :raises ValueError: another backend; more than one row of packed tokens.
    """
    refuse_context_parallel(cp_context)
    if backend not in ("triton", "cuda", "mix"):
        raise ValueError(f"Unsupported backend: {backend}")
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation must be None, silu or swish, not {activation}")
    assert weight is not None
    shape = x.shape
    x = x.flatten(2)  # heads, if there are any
    check_packed(x, cu_seqlens, initial_state)
    convolve = kernel(CAUSAL_CONVOLUTION)
    silu, width = activation is not None, weight.shape[1]
    channels, final = x.transpose(1, 2), None
    if cu_seqlens is None:
        past = None if initial_state is None else initial_state[..., 1:]
        output = convolve(channels, weight, bias, silu=silu, initial_state=past)
        if output_final_state:
            final = convolution_state(channels, width + 1, initial_state)
    elif initial_state is None and not output_final_state:
        ids = sequence_ids(cu_seqlens, x.shape[1])
        output = convolve(channels, weight, bias, silu=silu, sequence_ids=ids)
    else:
        if initial_state is None:
            initial_state = x.new_zeros(len(cu_seqlens) - 1, x.shape[2], width)
        packed, ids, places, ends = _with_states(x, initial_state, cu_seqlens)
        output = convolve(packed, weight, bias, silu=silu, sequence_ids=ids)[..., places]
        if output_final_state:
            last = ends.unsqueeze(1) + torch.arange(-width, 0, device=x.device)
            final = packed[0][:, last].transpose(0, 1)
    output = output.transpose(1, 2).contiguous().view(shape)
    output = output if residual is None else output + residual
    return output, None if final is None else final.contiguous()


def _with_states(
    x: torch.Tensor, states: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed sequences, each behind its state, without waiting for the device.

    :param x: [1, t, d].
    :param states: [n, d, w].
    :returns: [1, d, t + n w]; the number of every position's sequence; where the tokens are in it,
        [t]; where each sequence ends, [n].
    """
    count, _, width = states.shape
    number = torch.arange(count, device=x.device)
    ids = sequence_ids(cu_seqlens, x.shape[1])[0].long()
    places = torch.arange(x.shape[1], device=x.device) + (ids + 1) * width
    begins = cu_seqlens[:-1] + number * width
    before = begins.unsqueeze(1) + torch.arange(width, device=x.device)
    rows = torch.cat((states.transpose(1, 2).flatten(0, 1).to(x.dtype), x[0]))
    order = torch.cat((before.flatten(), places)).argsort()
    numbers = torch.cat((number.repeat_interleave(width), ids))
    ends = cu_seqlens[1:] + (number + 1) * width
    return rows[order].t().unsqueeze(0), numbers[order].unsqueeze(0), places, ends


@torch.no_grad()
def causal_conv1d_update(
    x: torch.Tensor,
    cache: torch.Tensor,
    residual: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token after those in ``cache``, which moves on in place.

    :param x: [b, d], [1, b, d] or [b, 1, d].
    :param cache: [b, d, w].
    :param residual: like ``x``, added at the end.
    :param weight: [d, w].
    :param bias: [d].
    :param activation: None, ``silu`` or ``swish``.
    :returns: like ``x``, and the cache.
    """
    assert weight is not None
    token = x.reshape(-1, 1, weight.shape[0])
    output, state = causal_conv1d(
        token,
        weight,
        bias,
        initial_state=cache,
        output_final_state=True,
        activation=activation,
    )
    assert state is not None
    cache.copy_(state)
    output = output.reshape(x.shape)
    return (output if residual is None else output + residual), cache


def refuse_context_parallel(cp_context: Any) -> None:
    """:raises NotImplementedError: there is a context."""
    if cp_context is not None:
        raise NotImplementedError(
            "accel_bridge's shim for fla has no context parallel of its own\n"
            "  evidence: cp_context was given; fla.ops.cp is absent\n"
            "  next:     leave cp_context out, or install the real flash-linear-attention"
        )
