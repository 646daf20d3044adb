"""Contract ``scaled_masked_softmax``: attention weights from attention scores.

Legend: b batch, n heads, sq queries, sk keys.
"""

from __future__ import annotations

import torch

from accel_bridge.kernels._contract import Contract, compute_dtype
from accel_bridge.kernels.attention import AttentionMask


def scaled_masked_softmax_reference(
    scores: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
) -> torch.Tensor:
    """``softmax(scale * scores)`` over the visible keys, in float32, rounded once at the end.

    :param scores: [b, n, sq, sk], any float dtype.
    :param mask: bool, broadcastable to the scores; True = hidden. Fully hidden rows give zeros.
    :param scale: factor before the softmax.
    :param causal: also hide keys after the query; the last query is at the last key.
    :returns: [b, n, sq, sk] in the scores' dtype.
    """
    x = scores.to(compute_dtype(scores)) * scale
    sq, sk = scores.shape[-2:]
    hidden = AttentionMask(causal=causal, masked=mask).hidden(sq, sk, scores.device)
    if hidden is None:
        return x.softmax(-1).to(scores.dtype)
    # A finite lowest value, not -inf, keeps gradients of fully hidden rows free of NaN.
    weights = x.masked_fill(hidden, torch.finfo(x.dtype).min).softmax(-1)
    return weights.masked_fill(hidden, 0.0).to(scores.dtype)


SCALED_MASKED_SOFTMAX = Contract(
    name="scaled_masked_softmax",
    reference=scaled_masked_softmax_reference,
    formula="softmax(scale * x, masked)",
    source="semantics of Megatron's FusedScaleMaskSoftmax",
)
