"""The local spec's attention: Megatron's own for Transformer Engine, with the local spec's masks.

Legend: b batch, sq and sk lengths of queries and keys, n heads of this rank, d head size, t tokens
of packed sequences.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from megatron.core.extensions.transformer_engine import TEDotProductAttention, te
from megatron.core.transformer.enums import AttnMaskType


def _as_environment(config: Any) -> Any:
    """A copy without what ``TEDotProductAttention`` wants from the environment as well.

    Scores are float32 throughout: dividing them by the layer's number and multiplying them again
    changes nothing. Determinism is torch's own setting. The layout is [s, b, n, d] in 0.12 too.
    """
    made = copy.copy(config)
    scaled = os.getenv("NVTE_APPLY_QK_LAYER_SCALING", "0")
    made.apply_query_key_layer_scaling = bool(int(scaled))
    made.deterministic_mode = made.apply_rope_fusion = False
    return made


class _LocalMasks(te.pytorch.DotProductAttention):  # type: ignore[misc]
    """Between Megatron's class and its base: masks mean what they mean in the local spec."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        attn_mask_type: str,
        **options: Any,
    ) -> Any:
        """A mask hides in addition to what its type does, and padding is only in a mask.

        :param attention_mask: bool [b, 1, sq or 1, sk], True = hidden, or None.
        """
        causal = "causal" in attn_mask_type
        if "cu_seqlens_q" in options:
            attention_mask = None  # the sequences are the mask
        elif attention_mask is not None:
            attn_mask_type = "arbitrary"
            if causal:
                left = self.window_size[0]
                options["window_size"] = (left if left >= 0 else key.shape[0], 0)
        elif causal:
            aligned = query.shape[0] == key.shape[0]
            attn_mask_type = "causal" if aligned else "causal_bottom_right"
        else:
            attn_mask_type = "no_mask"
        return super().forward(
            query, key, value, attention_mask, attn_mask_type=attn_mask_type, **options
        )


class DotProductAttention(TEDotProductAttention, _LocalMasks):  # type: ignore[misc]
    """``DotProductAttention`` of the local spec, by a kernel that writes no scores to memory."""

    #: There is no such state in this spec's checkpoints.
    get_extra_state = torch.nn.Module.get_extra_state
    set_extra_state = torch.nn.Module.set_extra_state

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(_as_environment(config), layer_number, attn_mask_type, *args, **kwargs)
        self.mask_type = attn_mask_type
        if getattr(config, "softmax_type", "vanilla") == "learnable":
            offset = self.softmax_offset.to(config.params_dtype)
            if config.perform_initialization:
                config.init_method(offset)
            self.softmax_offset.data = offset

    def forward(  # type: ignore[override]  # Megatron's calls; the base's are from its class
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """query [sq, b, n, d] -> [sq, b, n * d]; packed: [t, n, d] -> [t, n * d]."""
        kind = self.mask_type if attn_mask_type is None else attn_mask_type
        attend: Any = super().forward
        output: torch.Tensor = attend(query, key, value, attention_mask, kind, *args, **kwargs)
        return output
