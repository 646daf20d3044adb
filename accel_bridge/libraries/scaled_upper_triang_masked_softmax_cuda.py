"""Shim for Megatron's and Apex's softmax of scaled attention scores under a causal mask.

Legend: b batch times heads, s queries and keys.
"""

from __future__ import annotations

import torch

from accel_bridge.libraries import softmax


def forward(input: torch.Tensor, scale_factor: float | torch.Tensor) -> torch.Tensor:
    """``softmax(scale_factor * input)`` over the keys up to the query's own, rounded once.

    :param input: [b, s, s].
    :returns: as ``input``; zeros above the diagonal.
    """
    return softmax.forward(input.unsqueeze(0), None, scale_factor, causal=True)[0]


def backward(
    output_grads: torch.Tensor, softmax_results: torch.Tensor, scale_factor: float | torch.Tensor
) -> torch.Tensor:
    """Gradient of the input from that of the output and the output itself."""
    return softmax.backward(output_grads, softmax_results, scale_factor)
