"""Softmax of scaled attention scores: plain, masked, causal from either corner; both ways.

Legend: b batch, n heads, sq queries, sk keys. Scores are [b, n, sq, sk] or [b * n, sq, sk].
"""

from __future__ import annotations

import torch

from accel_bridge.libraries import softmax


def scaled_softmax_forward(scores: torch.Tensor, scale: float) -> torch.Tensor:
    """``softmax(scale * scores)`` over the keys, in float32, rounded once."""
    return softmax.forward(scores, None, scale)


def scaled_masked_softmax_forward(
    scores: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same over what is visible; rows that see nothing give zeros.

    :param mask: uint8 or bool, broadcastable to the scores; nonzero = hidden.
    """
    return softmax.forward(scores, mask.bool(), scale)


def scaled_upper_triang_masked_softmax_forward(scores: torch.Tensor, scale: float) -> torch.Tensor:
    """The same over the keys up to the query's own; as many queries as keys."""
    return softmax.forward(scores, None, scale, causal=True)


def scaled_aligned_causal_masked_softmax_forward(
    scores: torch.Tensor, scale: float
) -> torch.Tensor:
    """The same, the last query at the last key."""
    return softmax.forward(scores, None, scale, causal=True)


def scaled_softmax_backward(
    gradient: torch.Tensor, weights: torch.Tensor, scale: float
) -> torch.Tensor:
    """Gradient of the scores from that of the weights and the weights themselves."""
    return softmax.backward(gradient, weights, scale)


scaled_masked_softmax_backward = scaled_softmax_backward
scaled_upper_triang_masked_softmax_backward = scaled_softmax_backward
scaled_aligned_causal_masked_softmax_backward = scaled_softmax_backward
