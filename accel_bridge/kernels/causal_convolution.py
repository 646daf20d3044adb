"""Contract ``causal_convolution``: every channel filtered over its own past.

Legend: b batch, d channels, s sequence length, w width of the filter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from accel_bridge.kernels._contract import Contract, compute_dtype


def causal_convolution_reference(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """``y[t] = sum_j weight[j] * x[t - w + 1 + j] + bias``, in float32, rounded once at the end.

    :param input: [b, d, s] with any strides; float16, bfloat16, float32 or float64.
    :param weight: [d, w], any float dtype.
    :param bias: [d] or None.
    :param silu: apply ``y * sigmoid(y)`` before rounding.
    :param initial_state: [b, d, w - 1], what came before a row's first sequence; default zeros.
    :param sequence_ids: [b, s] integers: no position sees one with another id. Positions with a
        negative id are padding and give zeros.
    :returns: [b, d, s] in the input's dtype, with its order of strides, as its gradient has.
    :raises ValueError: sizes that do not fit.
    """
    check_convolution(input, weight, initial_state, sequence_ids)
    input = _SameLayout.apply(input)
    dtype = compute_dtype(input)
    taps, length = weight.to(dtype), input.shape[-1]
    width = weight.shape[-1]
    past = _past(input, width, initial_state).to(dtype)
    output = past[..., width - 1 :] * taps[:, width - 1 :]
    if sequence_ids is not None:
        # What stands before a row belongs to its first sequence.
        ids = torch.cat((sequence_ids[:, :1].repeat(1, width - 1), sequence_ids), -1)
    for tap in range(width - 1):
        part = past[..., tap : tap + length]
        if sequence_ids is not None:
            other = ids[:, tap : tap + length] != sequence_ids
            part = part.masked_fill(other.unsqueeze(1), 0.0)
        output = torch.addcmul(output, part, taps[:, tap : tap + 1])
    if bias is not None:
        output = output + bias.to(dtype).unsqueeze(-1)
    if silu:
        output = functional.silu(output)
    if sequence_ids is not None:
        output = output.masked_fill((sequence_ids < 0).unsqueeze(1), 0.0)
    return _laid_out(output.to(input.dtype), _strides(input))


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those of a dense tensor with the order of this one's."""
    return torch.empty_like(tensor, device="meta").stride()


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


class _SameLayout(torch.autograd.Function):
    """Passes a tensor on; its gradient gets the order of its strides."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.strides = _strides(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _laid_out(gradient, ctx.strides)


def convolution_state(
    input: torch.Tensor, width: int, initial_state: torch.Tensor | None = None
) -> torch.Tensor:
    """[b, d, w - 1]: what a convolution that goes on after ``input`` needs to know.

    :param input: [b, d, s].
    :param width: w.
    :param initial_state: [b, d, w - 1], what came before ``input``; default zeros.
    """
    past = _past(input[..., max(0, input.shape[-1] - width + 1) :], width, initial_state)
    return past[..., past.shape[-1] - width + 1 :]


def check_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    initial_state: torch.Tensor | None,
    sequence_ids: torch.Tensor | None,
) -> None:
    """:raises ValueError: the arguments of a convolution do not fit together."""
    batch, channels, length = input.shape
    if weight.dim() != 2 or weight.shape[0] != channels:
        raise ValueError(f"a weight of shape {list(weight.shape)} for {channels} channels")
    state = (batch, channels, weight.shape[1] - 1)
    if initial_state is not None and initial_state.shape != state:
        raise ValueError(f"initial_state is {list(initial_state.shape)}, not {list(state)}")
    if sequence_ids is not None and sequence_ids.shape != (batch, length):
        raise ValueError(f"sequence_ids is {list(sequence_ids.shape)}, not {[batch, length]}")


def _past(input: torch.Tensor, width: int, initial_state: torch.Tensor | None) -> torch.Tensor:
    """``input`` with the w - 1 positions before it."""
    if initial_state is None:
        return functional.pad(input, (width - 1, 0))
    return torch.cat((initial_state.to(input.dtype), input), -1)


CAUSAL_CONVOLUTION = Contract(
    name="causal_convolution",
    reference=causal_convolution_reference,
    formula="y[t] = act(sum_j w[j] * x[t - width + 1 + j] + bias), each channel by itself",
    source="Gu and Dao 2023, arXiv:2312.00752; semantics of causal_conv1d.causal_conv1d_fn",
)
