"""Explicit masks and biases of an attention call in the terms of the kernel contract.

Legend: sq and sk lengths of queries and keys, b batch. Formats: sbhd [s, b, n, d], bshd
[b, s, n, d], thd [t, n, d].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

import torch

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import AttentionMask, AttentionOptions, Layout
from accel_bridge.libraries.transformer_engine_torch._attention_call import Padding

from ._masks import Masks, alibi_bias, alibi_slopes_of, get_full_mask, get_padding_mask

#: The kernel's name of a format.
LAYOUTS: Final[dict[str, Layout]] = {"sbhd": "SBHD", "bshd": "BSHD", "thd": "TND"}


def with_matrices(
    options: AttentionOptions,
    mask_type: str,
    mask: Masks | None,
    padding: Padding | None,
    query: torch.Tensor,
    key: torch.Tensor,
) -> AttentionOptions:
    """Options with the explicit mask that an ``arbitrary`` or padding mask comes down to.

    :raises BridgeError: packed sequences, which have no matrix of scores.
    """
    if options.layout == "TND":
        raise BridgeError(
            "Packed sequences (qkv_format thd) cannot have an explicit mask or a bias here.",
            evidence=f"mask type {mask_type}, bias {options.bias is not None}",
            next="use qkv_format bshd or sbhd with a padding mask",
        )
    if mask_type == "arbitrary":
        assert isinstance(mask, torch.Tensor), "Please provide attention_mask for arbitrary!"
        return replace(options, mask=replace(options.mask, masked=mask.bool()))
    if "padding" not in mask_type:
        return options
    length = 0 if options.layout == "SBHD" else 1
    sq, sk = query.shape[length], key.shape[length]
    if padding is not None:
        batch = query.shape[1 - length]
        mask = get_padding_mask(batch, *padding.cu_seqlens, sq, sk, attention_type="cross")
    window = options.mask.window or (None, None)
    sides = cast(tuple[int, int], tuple(-1 if end is None else end for end in window))
    aligned = options.mask.alignment == "bottom_right"
    _, hidden, _, _ = get_full_mask(sq, sk, mask_type, mask, sides, bottom_right_alignment=aligned)
    return replace(options, mask=AttentionMask(masked=hidden))


def with_bias(
    options: AttentionOptions,
    kind: str,
    bias: torch.Tensor | None,
    slopes: torch.Tensor | None,
    padding: Padding | None,
    query: torch.Tensor,
    key: torch.Tensor,
) -> AttentionOptions:
    """Options with the bias that is added to the scaled scores.

    :param kind: ``post_scale_bias``, ``pre_scale_bias`` or ``alibi``.
    """
    length = 0 if options.layout == "SBHD" else 1
    batch, heads = query.shape[1 - length], query.shape[-2]
    if kind == "alibi":
        assert bias is None, (
            "core_attention_bias must be None when core_attention_bias_type is alibi!"
        )
        lengths = None
        if padding is not None:
            lengths = (padding.cu_seqlens[0].diff(), padding.cu_seqlens[1].diff())
        if slopes is None:
            slopes = alibi_slopes_of(heads, query.device)
        aligned = options.mask.alignment == "bottom_right"
        sizes = (query.shape[length], key.shape[length])
        return replace(options, bias=alibi_bias(slopes, *sizes, aligned, lengths))
    assert slopes is None, "core_attention_bias_type must be alibi in order to use alibi_slopes!"
    assert bias is not None, f"{kind} needs core_attention_bias"
    fits = bias.dim() == 4 and bias.shape[0] in (1, batch) and bias.shape[1] in (1, heads)
    assert fits, "core_attention_bias must be in one of {bhss, 1hss, b1ss, 11ss, 111s} shapes"
    assert options.scale is not None
    return replace(options, bias=bias * options.scale if kind == "pre_scale_bias" else bias)
