"""What runs along a sequence: convolution, state-space scan, gated delta rule."""

from __future__ import annotations

from typing import Final

import torch

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.kernels import (
    CAUSAL_CONVOLUTION,
    GATED_DELTA_RULE,
    STATE_SPACE_SCAN,
    reference_kernel,
)

#: Widest filter of the Triton kernel, whose backward pass loads its square of tiles.
WIDEST: Final = 8


def causal_convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract ``causal_convolution``."""
    from accel_bridge.backends.cuda.fused import convolution

    return convolution.causal_convolution(
        input,
        weight,
        bias,
        silu=silu,
        initial_state=initial_state,
        sequence_ids=sequence_ids,
    )


def _supports(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    initial_state: torch.Tensor | None = None,
    sequence_ids: torch.Tensor | None = None,
) -> str | None:
    if weight.shape[-1] > WIDEST:
        return f"a filter of width {weight.shape[-1]}, above {WIDEST}"
    return not_for_triton(input, weight, bias, initial_state)


TRITON: Final = (
    CAUSAL_CONVOLUTION.kernel(
        causal_convolution,
        "one pass each way, no float32 copy of the input",
        _supports,
        source="accel_bridge, in Triton",
    ),
)
KERNELS: Final = (
    reference_kernel(STATE_SPACE_SCAN, "its chunks are batched products, in the tensors' dtype"),
    reference_kernel(GATED_DELTA_RULE, "its chunks are batched products, in the tensors' dtype"),
)
