"""Fused attention as a pair of functions: forward, and backward from what it kept.

Served by the active backend's attention kernel; FP8 is not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import ATTENTION, ATTENTION_MAX_LOGIT
from accel_bridge.kernels.active import kernel

from ._enums import (
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fused_attn_bwd", "fused_attn_fwd"]


def _by_name(members: type[Any], names: dict[str, str]) -> dict[str, Any]:
    return {name: members[f"NVTE_{member}"] for name, member in names.items()}


_FORMATS: Final = ("sbhd", "bshd", "thd", "bshd_2sbhd", "sbhd_2bshd", "thd_2bshd", "thd_2sbhd")
_MASKS: Final = (
    "padding",
    "causal",
    "padding_causal",
    "causal_bottom_right",
    "padding_causal_bottom_right",
)
QKVFormat: Final = _by_name(NVTE_QKV_Format, {name: name.upper() for name in _FORMATS})
QKVLayout: Final = {member.name.removeprefix("NVTE_").lower(): member for member in NVTE_QKV_Layout}
AttnBiasType: Final = {
    member.name.removeprefix("NVTE_").lower(): member for member in NVTE_Bias_Type
}
AttnMaskType: Final = _by_name(
    NVTE_Mask_Type, {"no_mask": "NO_MASK"} | {name: f"{name}_MASK".upper() for name in _MASKS}
)
SoftmaxType: Final = _by_name(
    NVTE_Softmax_Type,
    {
        "vanilla": "VANILLA_SOFTMAX",
        "off-by-one": "OFF_BY_ONE_SOFTMAX",
        "learnable": "LEARNABLE_SOFTMAX",
    },
)
FusedAttnBackend: Final = {
    member.name.removeprefix("NVTE_"): member for member in NVTE_Fused_Attn_Backend
}

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def fused_attn_fwd(
    is_training: bool,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    fake_dtype: torch.dtype,
    fused_attention_backend: Any,
    attn_bias: torch.Tensor | None = None,
    cu_seqlens_q_padded: torch.Tensor | None = None,
    cu_seqlens_kv_padded: torch.Tensor | None = None,
    page_table_k: torch.Tensor | None = None,
    page_table_v: torch.Tensor | None = None,
    s_quantizer: Any = None,
    o_quantizer: Any = None,
    attn_scale: float | None = None,
    dropout: float = 0.0,
    fast_zero_fill: bool = True,
    qkv_layout: str = "sbh3d",
    attn_bias_type: str = "no_bias",
    attn_mask_type: str = "padding",
    softmax_type: str = "vanilla",
    window_size: tuple[int, int] = (-1, -1),
    bottom_right_diagonal: bool | None = None,
    rng_gen: torch.Generator | None = None,
    softmax_offset: torch.Tensor | None = None,
    return_max_logit: bool = False,
    cuda_graph: bool = False,
) -> tuple[Any, ...]:
    """Attention of tensors in ``qkv_layout``.

    :param softmax_offset: [1, n, 1, 1].
    :returns: the output as the query with dv for d; with ``is_training`` what the backward pass
        needs, else None; with ``return_max_logit`` [n].
    :raises BridgeError: FP8, pages or a generator of the caller's.
    """
    if page_table_k is not None or page_table_v is not None or rng_gen is not None:
        raise BridgeError(
            "fused_attn_fwd takes neither page tables nor a generator here.",
            evidence=f"page tables {page_table_k is not None}, generator {rng_gen is not None}",
            next="use DotProductAttention, with InferenceParams for cached pages",
        )
    _refuse_fp8(fused_attention_backend)
    kept = [torch.cuda.get_rng_state(), attn_bias, softmax_offset]
    with torch.no_grad():
        output, largest = _run(
            (q, k, v),
            (cu_seqlens_q, cu_seqlens_kv),
            (cu_seqlens_q_padded, cu_seqlens_kv_padded),
            attn_bias,
            softmax_offset,
            scale=attn_scale,
            dropout=dropout if is_training else 0.0,
            layout=qkv_layout,
            bias_type=attn_bias_type,
            mask_type=attn_mask_type,
            window=window_size,
            bottom_right=bottom_right_diagonal,
            with_max_logit=return_max_logit,
        )
    results = (output, kept if is_training else None)
    return (*results, largest) if return_max_logit else results


def fused_attn_bwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    d_o: torch.Tensor,
    fake_dtype: torch.dtype,
    dqkv_dtype: Any,
    aux_ctx_tensors: Sequence[torch.Tensor | None],
    fused_attention_backend: Any,
    cu_seqlens_q_padded: torch.Tensor | None = None,
    cu_seqlens_kv_padded: torch.Tensor | None = None,
    s_quantizer: Any = None,
    dp_quantizer: Any = None,
    dqkv_quantizer: Any = None,
    attn_scale: float | None = None,
    dropout: float = 0.0,
    fast_zero_fill: bool = True,
    qkv_layout: str = "sbh3d",
    attn_bias_type: str = "no_bias",
    attn_mask_type: str = "padding",
    softmax_type: str = "vanilla",
    window_size: tuple[int, int] = (-1, -1),
    bottom_right_diagonal: bool | None = None,
    deterministic: bool = False,
    cuda_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of query, key, value, bias and sink; computes the forward pass again.

    :param aux_ctx_tensors: what the forward pass kept.
    """
    _refuse_fp8(fused_attention_backend)
    state, bias, offset = aux_ctx_tensors
    assert state is not None
    leaves = [
        None if one is None else one.detach().requires_grad_() for one in (q, k, v, bias, offset)
    ]
    before = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)
    with torch.enable_grad():
        output, _ = _run(
            (leaves[0], leaves[1], leaves[2]),  # type: ignore[arg-type]
            (cu_seqlens_q, cu_seqlens_kv),
            (cu_seqlens_q_padded, cu_seqlens_kv_padded),
            leaves[3],
            leaves[4],
            scale=attn_scale,
            dropout=dropout,
            layout=qkv_layout,
            bias_type=attn_bias_type,
            mask_type=attn_mask_type,
            window=window_size,
            bottom_right=bottom_right_diagonal,
        )
    torch.cuda.set_rng_state(before)
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(output, wanted, d_o.view_as(output)))
    return tuple(None if leaf is None else next(found) for leaf in leaves)


def _refuse_fp8(backend: Any) -> None:
    if backend not in (
        NVTE_Fused_Attn_Backend.NVTE_F16_max512_seqlen,
        NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen,
    ):
        raise BridgeError(
            "Fused attention in FP8 is not served.",
            evidence=f"backend {backend!r}",
            next="use FusedAttnBackend['F16_arbitrary_seqlen']",
        )


def _run(
    tensors: Tensors,
    lengths: tuple[torch.Tensor, torch.Tensor],
    padded: tuple[torch.Tensor | None, torch.Tensor | None],
    bias: torch.Tensor | None,
    offset: torch.Tensor | None,
    *,
    scale: float | None,
    dropout: float,
    layout: str,
    bias_type: str,
    mask_type: str,
    window: tuple[int, int],
    bottom_right: bool | None,
    with_max_logit: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output with heads apart, and the largest logit of each head."""
    from accel_bridge.libraries.transformer_engine_torch import _attention_call

    from ..attention.dot_product_attention import _call, utils

    form, _, _ = utils.get_qkv_format(layout)
    window = utils.check_set_window_size(mask_type, window)
    if "causal" in mask_type or bottom_right is None:
        bottom_right = "bottom_right" in mask_type or "causal" not in mask_type
    scale = 1.0 / math.sqrt(tensors[0].shape[-1]) if scale is None else scale
    mask = _attention_call.mask_of("causal" in mask_type, window, bottom_right)
    options = _attention_call.options_of(_call.LAYOUTS[form], mask, scale, dropout)
    if offset is not None:
        options = replace(options, softmax_offset=offset.flatten())
    padding = None
    if "padding" in mask_type:
        padding = _attention_call.Padding(cu_seqlens=lengths, padded=padded)
    if bias_type != "no_bias":
        query, key, _ = tensors
        options = _call.with_bias(options, bias_type, bias, None, padding, query, key)
        options = _call.with_matrices(options, mask_type, None, padding, query, key)
        padding = None
    output = _attention_call.attend(kernel(ATTENTION), *tensors, options, padding, None)
    largest = None
    if with_max_logit:
        largest = _attention_call.largest_logit(
            kernel(ATTENTION_MAX_LOGIT), *tensors[:2], options, padding, None
        )
    return output, largest
