"""Shim for Megatron's and Apex's softmax of scaled attention scores, without a mask.

Legend: b batch, n heads, sq queries, sk keys.
"""

from __future__ import annotations

import torch

from accel_bridge.libraries import softmax


def forward(input: torch.Tensor, scale_factor: float | torch.Tensor) -> torch.Tensor:
    """``softmax(scale_factor * input)`` over the keys, in float32, rounded once.

    :param input: [b, n, sq, sk].
    :returns: as ``input``.
    """
    return softmax.forward(input, None, scale_factor)


def backward(
    output_grads: torch.Tensor, softmax_results: torch.Tensor, scale_factor: float | torch.Tensor
) -> torch.Tensor:
    """Gradient of the input from that of the output and the output itself."""
    return softmax.backward(output_grads, softmax_results, scale_factor)
