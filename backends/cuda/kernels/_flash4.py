"""FlashAttention-4 on Hopper, where flash-attn-4 is installed.

Legend: b batch, s sequence, n query heads, g key/value heads, d head size.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, cast

import torch

from accel_bridge.backends.cuda.kernels._choice import without_package


@cache
def missing() -> str | None:
    """Why FlashAttention-4 cannot be used, or None."""
    return without_package("flash-attn-4", "flash_attn.cute.interface", ("4.0.0b36",), "hopper")


@cache
def _function() -> Any:
    return importlib.import_module("flash_attn.cute.interface").flash_attn_func


def flash4_attention(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], causal: bool, scale: float
) -> torch.Tensor:
    """Full or plain causal attention, as many keys as queries.

    :param tensors: query [b, n, s, d], key and value [b, g, s, d], float16 or bfloat16.
    :returns: [b, n, s, d], a view of [b, s, n, d].
    """
    output, _ = _function()(
        *(tensor.transpose(1, 2) for tensor in tensors),
        softmax_scale=scale,
        causal=causal,
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return cast(torch.Tensor, output.transpose(1, 2))
