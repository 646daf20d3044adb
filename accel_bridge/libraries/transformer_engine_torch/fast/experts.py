"""``GroupedLinear``: the weights of all experts in one storage, so that one launch serves them.

Legend: e experts, k input size, m output size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from accel_bridge.libraries.transformer_engine_torch.fast._conditions import PLAIN


def reset_parameters(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """``GroupedLinear.reset_parameters``; the weights then lie one after another.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """

    @functools.wraps(original)
    def reset(self: Any, defer_init: bool | None = False) -> Any:
        result = original(self, defer_init=defer_init)
        weights: list[Any] = [
            getattr(self, f"weight{index}", None) for index in range(self.num_gemms)
        ]
        if not defer_init and len(weights) > 1 and all(map(_is_plain, weights)):
            whole = torch.stack([weight.detach() for weight in weights])  # [e, m, k]
            for weight, place in zip(weights, whole, strict=True):
                # `data`: the parameters must not share a count of writes.
                weight.data = place.data
        return result

    return reset


def _is_plain(weight: Any) -> bool:
    return type(weight) in PLAIN and not weight.is_meta
