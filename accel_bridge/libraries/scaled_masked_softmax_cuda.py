"""Shim for Megatron's and Apex's softmax of scaled attention scores under a mask.

Legend: b batch, n heads, sq queries, sk keys.
"""

from __future__ import annotations

import torch

from accel_bridge.libraries import softmax


def forward(
    input: torch.Tensor, mask: torch.Tensor, scale_factor: float | torch.Tensor
) -> torch.Tensor:
    """``softmax(scale_factor * input)`` over the visible keys, in float32, rounded once.

    :param input: [b, n, sq, sk].
    :param mask: [b or 1, 1, sq, sk], bool or uint8; true is hidden. Fully hidden rows give zeros.
    :returns: as ``input``.
    """
    return softmax.forward(input, mask.bool(), scale_factor)


def backward(
    output_grads: torch.Tensor, softmax_results: torch.Tensor, scale_factor: float | torch.Tensor
) -> torch.Tensor:
    """Gradient of the input from that of the output and the output itself."""
    return softmax.backward(output_grads, softmax_results, scale_factor)


def get_batch_per_block(query_seq_len: int, key_seq_len: int, batches: int, attn_heads: int) -> int:
    """Rows that one block takes: 1, so that every number of rows can be had."""
    return 1
