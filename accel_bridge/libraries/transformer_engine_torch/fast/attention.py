"""``DotProductAttention.forward``: one call of the attention kernel.

Transformer Engine's own way chooses among its backends and their layouts at every call, and its
context parallelism sends keys and values around a ring; here they are gathered.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import torch

from accel_bridge.kernels import ATTENTION, ATTENTION_MAX_LOGIT, AttentionOptions
from accel_bridge.kernels.active import attention_layout, kernel
from accel_bridge.kernels.context_parallel import called_in
from accel_bridge.libraries.transformer_engine_torch.attention import (
    LAYOUTS,
    Padding,
    attend,
    largest_logit,
    mask_of,
    options_of,
    split_of,
)
from accel_bridge.libraries.transformer_engine_torch.fast import PLAIN

#: Arguments that are read, or that change nothing here.
_READ: Final = frozenset(
    (
        *("attention_mask", "qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "attn_mask_type"),
        *("cu_seqlens_q_padded", "cu_seqlens_kv_padded", "window_size", "bottom_right_diagonal"),
        *("max_seqlen_q", "max_seqlen_kv", "pad_between_seqs", "fast_zero_fill", "num_splits"),
    )
)
#: What every other argument is where it asks for nothing.
_NOTHING: Final = (None, False, 0.0, "no_bias")
_KINDS: Final = {
    *("no_mask", "causal", "causal_bottom_right", "padding", "padding_causal"),
    "padding_causal_bottom_right",
}
_SWAPPED: Final = {"padding,causal": "padding_causal", "causal,padding": "padding_causal"}


def attention_forward(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """The method.

    :param original: Transformer Engine's own.
    :param module: the module that defines it.
    """
    states = module.FP8GlobalStateManager

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _call(self, states, args, kwargs)
        if call is None:
            return original(self, *args, **kwargs)
        tensors, options, padding = call
        split = split_of(self.cp_group, self.cp_comm_type)
        served = kernel(ATTENTION)
        if options.layout == "SBHD" and padding is None and split is None:
            called = attention_layout()
            served = served if called == "SBHD" else called_in(served, called)  # type: ignore[assignment]
        context = contextlib.nullcontext()
        if options.dropout:
            context = self.fused_attention.attention_dropout_ctx()
        with context:
            output = attend(served, *tensors, options, padding, split).flatten(-2)
        if not getattr(self, "return_max_logit", False):  # 2.8 has none
            return output
        largest = kernel(ATTENTION_MAX_LOGIT)
        return output, largest_logit(largest, *tensors[:2], options, padding, split)

    return forward


def _call(
    layer: Any, states: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, Any, Any], AttentionOptions, Padding | None] | None:
    """Tensors, options and padding of a call; None if it takes the long way."""
    if not 3 <= len(args) <= 4 or torch.compiler.is_compiling() or _unfused():
        return None
    query, key, value = args[:3]
    for name, argument in kwargs.items():
        if name not in _READ and (isinstance(argument, torch.Tensor) or argument not in _NOTHING):
            return None
    if not _is_plain(layer, states, query, key, value):
        return None
    form = kwargs.get("qkv_format") or layer.qkv_format
    kind = kwargs.get("attn_mask_type") or layer.attn_mask_type
    kind = _SWAPPED.get(kind, kind)
    lengths = kwargs.get("cu_seqlens_q"), kwargs.get("cu_seqlens_kv")
    padded = "padding" in kind
    if kind not in _KINDS or query.dim() != (3 if form == "thd" else 4):
        return None
    if (padded or form == "thd") and (not padded or lengths[0] is None or lengths[1] is None):
        return None
    aligned = kwargs.get("bottom_right_diagonal")
    if aligned is None:
        aligned = getattr(layer, "bottom_right_diagonal", None)
    window = kwargs.get("window_size")
    window = layer.window_size if window is None else window
    options = _options(
        form,
        kind,
        None if window is None else tuple(window),
        aligned,
        layer.fused_attention.softmax_scale,
        layer.fused_attention.attention_dropout if layer.training else 0.0,
    )
    if getattr(layer, "softmax_offset", None) is not None:
        options = replace(options, softmax_offset=layer.softmax_offset.flatten())
    padding = None
    if padded:
        between = kwargs.get("cu_seqlens_q_padded"), kwargs.get("cu_seqlens_kv_padded")
        padding = Padding(lengths, between)  # type: ignore[arg-type]
    return (query, key, value), options, padding


@lru_cache(maxsize=256)
def _options(
    form: str,
    kind: str,
    window: tuple[int, int] | None,
    aligned: bool | None,
    scale: float,
    dropout: float,
) -> AttentionOptions:
    causal = "causal" in kind
    left, right = (-1, -1) if window is None else window
    if causal:
        aligned = "bottom_right" in kind
    elif (left, right) == (-1, 0):
        right = -1  # Transformer Engine's own correction
    mask = mask_of(causal, (left, 0 if causal else right), aligned is not False)
    return options_of(LAYOUTS[form.upper()], mask, scale, dropout)


def _is_plain(layer: Any, states: Any, query: Any, key: Any, value: Any) -> bool:
    """Whether nothing but the attention of plain tensors is asked for."""
    if not {type(query), type(key), type(value)} <= PLAIN or not query.is_cuda:
        return False
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return False
    heads = layer.num_gqa_groups_per_partition
    sizes = (layer.hidden_size_per_attention_head_k, layer.hidden_size_per_attention_head_v)
    if (key.shape[-2], key.shape[-1], value.shape[-1]) != (heads, *sizes):
        return False  # the long way says what is wrong
    if getattr(layer, "softcap", 0.0):
        return False
    balanced = getattr(layer, "load_balancing_strategy", None)
    if balanced is not None and balanced.name != "DUAL_CHUNK_SWAP":
        return False
    if states.is_fp8_calibration():
        return False
    if not states.is_fp8_enabled():
        return True
    recipe = states.get_fp8_recipe()
    # Delayed scaling keeps a history for attention too, which checkpoints hold.
    if recipe.fp8_dpa or recipe.fp8_mha or recipe.delayed() or _custom(recipe):
        return False
    if not layer.fp8_initialized:
        # The long way does so, too: it must not serve a layer's first call alone, as it rounds
        # in other places.
        layer.init_fp8_metadata(num_gemms=3)
    return True


def _unfused() -> bool:
    """Whether the caller left only Transformer Engine's unfused attention."""
    environ = os.environ
    return environ.get("NVTE_FUSED_ATTN") == "0" and environ.get("NVTE_FLASH_ATTN") == "0"


def _custom(recipe: Any) -> bool:
    """Whether the caller makes the quantizers; 2.8 has no such recipe."""
    return hasattr(recipe, "custom") and bool(recipe.custom())
