"""The largest attention score of each head, by Triton."""

from __future__ import annotations

import math
from typing import Final

import torch

from accel_bridge.backends.cuda.kernels._choice import not_for_triton
from accel_bridge.backends.cuda.kernels.attention import packing_of
from accel_bridge.kernels import ATTENTION_MAX_LOGIT, AttentionMask, AttentionOptions, to_bnsd


def max_logit(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """The contract ``attention_max_logit``."""
    from accel_bridge.backends.cuda.fused import max_logit as fused

    left, right = _ends(options.mask)
    reach = fused.Reach(left, right, options.mask.alignment == "bottom_right")
    scale = options.scale
    if options.layout == "TND":
        packing = packing_of(query, key, options)
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        lengths = (packing.queries, packing.keys, packing.longest_query)
        return fused.max_logit(query, key, reach, scale, lengths)
    query, key, _ = to_bnsd(query, key, key, options.layout, options.heads)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    return fused.max_logit(query.transpose(1, 2), key.transpose(1, 2), reach, scale)


def _ends(mask: AttentionMask) -> tuple[int | None, int | None]:
    left, right = mask.window or (None, None)
    if mask.causal:
        right = 0 if right is None else min(right, 0)
    return left, right


def _supports(query: torch.Tensor, key: torch.Tensor, options: AttentionOptions) -> str | None:
    if options.mask.masked is not None or options.bias is not None:
        return "an explicit mask or a bias: the Triton kernel sees positions only"
    if options.layout in ("SBH", "BSH"):
        query, key, _ = to_bnsd(query, key, key, options.layout, options.heads)
    if query.shape[-1] > 256:
        return f"heads of {query.shape[-1]}: the Triton kernel takes up to 256"
    if options.layout == "TND" and options.cu_seqlens_q is None:
        return "lengths are missing"
    return not_for_triton(query, key)


KERNELS: Final = (
    ATTENTION_MAX_LOGIT.kernel(
        max_logit, "no score matrix", _supports, source="accel_bridge.backends.cuda.fused"
    ),
)
