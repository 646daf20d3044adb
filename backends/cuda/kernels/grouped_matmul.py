"""One GEMM for each expert, in a single launch of torch's.

Legend: t tokens, e experts, k input size, m output size.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

import torch

from accel_bridge.backends.cuda.kernels._choice import capability, on_device
from accel_bridge.kernels import GROUPED_MATMUL


def grouped_matmul(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> torch.Tensor:
    """The contract ``grouped_matmul``.

    Counts on the host are checked; counts on the device are not: that would wait for the device.
    """
    if tokens_per_expert.device.type == "cpu":
        counts = tokens_per_expert.tolist()
        ends = tuple(accumulate(counts))
        if ends[-1] != input.shape[0] or min(counts) < 0:
            raise ValueError(f"counts {counts} for {input.shape[0]} rows")
        if torch.cuda.is_current_stream_capturing():
            # A graph reads its inputs again when it is played: numbers that it writes itself.
            numbers = [torch.full((), end, device=input.device) for end in ends]
            offsets = torch.stack(numbers).to(torch.int32)
        else:
            offsets = on_device(ends, torch.int32, input.device)
    else:
        offsets = tokens_per_expert.cumsum(0).to(torch.int32)
    return torch._grouped_mm(input.contiguous(), weight, offs=offsets)


def supports(
    input: torch.Tensor, weight: torch.Tensor, tokens_per_expert: torch.Tensor
) -> str | None:
    """Where :func:`grouped_matmul` applies."""
    if input.dtype != torch.bfloat16:
        return f"torch's grouped GEMM takes bfloat16, not {input.dtype}"
    if capability(input.device) < (9, 0):
        return "torch's grouped GEMM needs compute capability 9.0"
    if len(tokens_per_expert) != weight.shape[0]:
        return f"{len(tokens_per_expert)} counts for {weight.shape[0]} experts"
    if input.shape[-1] % 8 or weight.shape[-1] % 8:
        return "torch's grouped GEMM takes sizes that are multiples of 8"
    if 1 not in weight.stride()[1:] or not input.shape[0]:
        return "no rows, or a weight that is strided in both directions"
    return None


KERNELS: Final = (
    GROUPED_MATMUL.kernel(
        grouped_matmul, "every expert in one launch", supports, source="torch._grouped_mm"
    ),
)
