"""Tokens to their experts and back, and one matrix product per expert in a single launch.

Legend: t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import torch

from accel_bridge.backends.cuda.fused._numbers import on_device
from accel_bridge.backends.cuda.kernels._choice import capability, not_for_triton
from accel_bridge.kernels import (
    GROUPED_MATMUL,
    GROUPED_WEIGHT_GRADIENT,
    TOKEN_PERMUTE,
    TOKEN_UNPERMUTE,
)

#: Experts whose rows a program holds at once.
_EXPERTS: Final = 1024


def grouped_matmul(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> torch.Tensor:
    """The contract ``grouped_matmul``.

    Counts on the host are checked; counts on the device are not: that would wait for the device.
    """
    if tokens_per_expert.device.type == "cpu":
        ends = tuple(accumulate(tokens_per_expert.tolist()))
        if ends[-1] != input.shape[0]:
            raise ValueError(f"counts {tokens_per_expert.tolist()} for {input.shape[0]} rows")
        if torch.cuda.is_current_stream_capturing():
            # A graph reads its inputs again when it is played: numbers that it writes itself.
            numbers = [torch.full((), end, device=input.device) for end in ends]
            offsets = torch.stack(numbers).to(torch.int32)
        else:
            offsets = on_device(ends, torch.int32, input.device)
    else:
        offsets = tokens_per_expert.cumsum(0).to(torch.int32)
    return torch._grouped_mm(input.contiguous(), weight, offs=offsets)


def _supports(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> str | None:
    if input.dtype != torch.bfloat16:
        return f"torch's grouped product takes bfloat16, not {input.dtype}"
    if capability(input.device) < (9, 0):
        return "torch's grouped product needs compute capability 9.0"
    if len(tokens_per_expert) != weight.shape[0]:
        return f"{len(tokens_per_expert)} counts for {weight.shape[0]} experts"
    if input.shape[-1] % 8 or weight.shape[-1] % 8:
        return "torch's grouped product takes sizes that are multiples of 8"
    if 1 not in weight.stride()[1:] or not input.shape[0]:
        return "no rows, or a weight that is strided in both directions"
    return None


def token_permute(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None = None,
    *,
    num_out_tokens: int,
    pad_offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """The contract ``token_permute``."""
    from accel_bridge.backends.cuda.fused import experts

    return experts.token_permute(
        tokens, routing_map, probs, num_out_tokens=num_out_tokens, pad_offsets=pad_offsets
    )


def _permute_supports(
    tokens: torch.Tensor,
    routing_map: torch.Tensor,
    probs: torch.Tensor | None = None,
    *,
    num_out_tokens: int,
    pad_offsets: torch.Tensor | None = None,
) -> str | None:
    return _too_many(routing_map.shape[1]) or not_for_triton(tokens, probs)


def token_unpermute(
    permuted: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    complete: bool = False,
) -> torch.Tensor:
    """The contract ``token_unpermute``."""
    from accel_bridge.backends.cuda.fused import experts

    return experts.token_unpermute(permuted, rows, weights, complete=complete)


def _unpermute_supports(
    permuted: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
    *,
    complete: bool = False,
) -> str | None:
    return _too_many(rows.shape[1]) or not_for_triton(permuted, weights)


def _too_many(experts: int) -> str | None:
    return f"{experts} experts" if experts > _EXPERTS else None


def grouped_weight_gradient(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
) -> None:
    """The contract ``grouped_weight_gradient``."""
    from accel_bridge.backends.cuda.fused import grouped

    grouped.grouped_weight_gradient(input, grad_output, splits, main_grad, places)


def _gradient_supports(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    splits: Sequence[int],
    main_grad: torch.Tensor,
    places: Sequence[int],
) -> str | None:
    if input.dtype != grad_output.dtype or input.dtype not in (torch.bfloat16, torch.float16):
        return f"Triton's products are for half precision, not {input.dtype}"
    if main_grad.dtype != torch.float32:
        return f"sums in {main_grad.dtype}"
    if any(place % 4 for place in places):
        return "sums that do not begin at multiples of 16 bytes"
    return None


_TRITON: Final = "accel_bridge, in Triton"
MOVES: Final = (
    TOKEN_PERMUTE.kernel(
        token_permute,
        "every token is read once, every copy written once",
        _permute_supports,
        _TRITON,
    ),
    TOKEN_UNPERMUTE.kernel(
        token_unpermute,
        "sums in float32 and in a fixed order; every copy is read once",
        _unpermute_supports,
        _TRITON,
    ),
    GROUPED_WEIGHT_GRADIENT.kernel(
        grouped_weight_gradient, "every expert in one launch", _gradient_supports, _TRITON
    ),
)
KERNELS: Final = (
    GROUPED_MATMUL.kernel(
        grouped_matmul, "every expert in one launch", _supports, source="torch._grouped_mm"
    ),
)
