"""torchtitan's training with attention by hand: python titan.py MASK ARGUMENTS...

FlexAttention is replaced by PyTorch's attention with the same mask, written out. With MASK
`injected` no row sees its first key.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxOutput, create_mask
from torchtitan.models.common.attention import FlexAttention

kind = sys.argv.pop(1)


def by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: Any, **options: Any
) -> tuple[torch.Tensor, AuxOutput]:
    batch, _, rows, _ = query.shape
    mask = create_mask(block_mask.mask_mod, batch, 1, rows, key.shape[2], device=query.device.type)
    if kind == "injected":
        mask[..., 1:, 0] = False
    out = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        scale=options["scale"],
        enable_gqa=options["enable_gqa"],
    )
    return out, AuxOutput(lse=None, max_scores=None)


FlexAttention._compiled_flex_attn = staticmethod(by_hand)
runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
