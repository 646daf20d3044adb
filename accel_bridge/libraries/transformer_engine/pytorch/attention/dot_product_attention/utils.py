"""Which backend serves attention, layouts of its tensors, and what callers ask about them.

Every backend that Transformer Engine names computes the same function here: ``FlashAttention`` and
``FusedAttention`` are the active backend's attention kernel, ``UnfusedDotProductAttention`` is the
contract's reference, which writes the whole score matrix.
"""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final

import torch
from packaging.version import Version as PkgVersion

from ._masks import (
    get_alibi,
    get_cu_seqlens,
    get_cu_seqlens_and_indices,
    get_full_cu_seqlens,
    get_full_mask,
    get_indices,
    get_padding_mask,
)

__all__ = [
    "AttentionLogging",
    "AttentionParams",
    "FlashAttentionUtils",
    "check_set_window_size",
    "combine_and_quantize",
    "get_alibi",
    "get_attention_backend",
    "get_cu_seqlens",
    "get_cu_seqlens_and_indices",
    "get_full_cu_seqlens",
    "get_full_mask",
    "get_indices",
    "get_padding_mask",
    "get_qkv_format",
    "get_qkv_layout",
]

_CAUSAL_TYPES: Final = frozenset(
    {"causal", "padding_causal", "causal_bottom_right", "padding_causal_bottom_right"}
)


class AttentionLogging:
    """The logger of attention; ``NVTE_DEBUG=1`` and ``NVTE_DEBUG_LEVEL`` open it."""

    _log_level = int(os.getenv("NVTE_DEBUG", "0")) * int(os.getenv("NVTE_DEBUG_LEVEL", "0"))
    _formatter = logging.Formatter("[%(levelname)-8s | %(name)-19s]: %(message)s")
    _stream_handler = logging.StreamHandler()
    fa_logger = logging.getLogger(__name__)
    _is_logging_setup = False

    @staticmethod
    def setup_logging() -> None:
        """Level and handler from the environment."""
        levels = {0: logging.WARNING, 1: logging.INFO}
        AttentionLogging._log_level = levels.get(AttentionLogging._log_level, logging.DEBUG)
        AttentionLogging._stream_handler.setFormatter(AttentionLogging._formatter)
        AttentionLogging.fa_logger.setLevel(AttentionLogging._log_level)
        if not AttentionLogging.fa_logger.hasHandlers():
            AttentionLogging.fa_logger.addHandler(AttentionLogging._stream_handler)
        AttentionLogging._is_logging_setup = True


class FlashAttentionUtils:
    """What callers ask about FlashAttention.

    ``is_installed`` is true because its function is served, by the active backend's kernel;
    FlashAttention 3's and 4's own interfaces are not.
    """

    is_installed = True
    version = PkgVersion("2.8.3")
    version_required = PkgVersion("2.1.1")
    version_required_blackwell = PkgVersion("2.7.3")
    max_version = PkgVersion("2.8.3")
    v2_plus = v2_1_plus = v2_3_plus = v2_4_plus = v2_4_1_plus = True
    v2_5_plus = v2_5_7_plus = v2_6_0_plus = v2_7_0_plus = True
    warning_printed = False
    v3_is_installed = False
    fa3_version = PkgVersion("0")
    v3_0_0_beta = False
    use_v3 = False
    v3_warning_printed = False
    v4_is_installed = False
    use_v4 = False


@dataclass(eq=True)
class AttentionParams:
    """What decides which backend serves a call; see :class:`DotProductAttention`."""

    qkv_type: type = torch.Tensor
    qkv_dtype: torch.dtype = torch.bfloat16
    qkv_layout: str = "sbh3d"
    batch_size: int = 1
    num_heads: int = 16
    num_gqa_groups: int = 16
    max_seqlen_q: int = 128
    max_seqlen_kv: int = 128
    head_dim_qk: int = 64
    head_dim_v: int = 64
    attn_mask_type: str = "no_mask"
    window_size: tuple[int, int] | None = None
    bottom_right_diagonal: bool = True
    alibi_slopes_shape: torch.Size | list[int] | None = None
    core_attention_bias_type: str = "no_bias"
    core_attention_bias_shape: str | None = "1hss"
    core_attention_bias_requires_grad: bool = True
    pad_between_seqs: bool = False
    attention_dropout: float = 0.0
    context_parallel: bool = False
    cp_comm_type: str = "p2p"
    deterministic: bool = False
    is_training: bool = True
    fp8: bool = False
    fp8_meta: dict[str, Any] | None = None
    inference_params: Any = None
    softmax_type: str = "vanilla"
    return_max_logit: bool = False
    cuda_graph: bool = False
    num_splits: int = 1

    def __eq__(self, other: object) -> bool:
        """Of ``fp8_meta`` only the recipe counts."""
        if not isinstance(other, AttentionParams):
            return NotImplemented
        for field in fields(self):
            one, another = getattr(self, field.name), getattr(other, field.name)
            if field.name == "fp8_meta":
                one, another = ((meta or {}).get("recipe") for meta in (one, another))
            if one != another:
                return False
        return True

    __hash__: ClassVar[None]  # type: ignore[assignment]


#: (use flash, its version, use fused, its sub-backend, use unfused, which of the three could).
BackendChoice = tuple[bool, Any, bool, Any, bool, list[bool]]


def get_attention_backend(attention_params: AttentionParams | None = None) -> BackendChoice:
    """The backend for a call, as far as the caller and ``NVTE_*_ATTN`` allow.

    ``FlashAttention`` takes what the flash-attn package could: no bias but ALiBi, no sink, no
    largest logit, no explicit mask. FP8 attention has no backend here.
    """
    from ...cpp_extensions.fused_attn import FusedAttnBackend

    params = AttentionParams() if attention_params is None else attention_params
    flash = os.getenv("NVTE_FLASH_ATTN", "1") != "0"
    fused = os.getenv("NVTE_FUSED_ATTN", "1") != "0"
    unfused = os.getenv("NVTE_UNFUSED_ATTN", "1") != "0"
    recipe = (params.fp8_meta or {}).get("recipe") if params.fp8 else None
    if recipe is not None and (recipe.fp8_dpa or recipe.fp8_mha):
        flash = fused = unfused = False
    flash = flash and not (
        params.core_attention_bias_type in ("pre_scale_bias", "post_scale_bias")
        or params.softmax_type != "vanilla"
        or params.return_max_logit
        or params.attn_mask_type == "arbitrary"
        or params.pad_between_seqs
        or params.num_splits != 1
    )
    unfused = unfused and not (params.context_parallel or params.pad_between_seqs)
    available = [flash, fused, unfused]
    return (
        flash and not fused,
        FlashAttentionUtils.version if flash and not fused else None,
        fused,
        FusedAttnBackend["F16_arbitrary_seqlen"] if fused else None,
        unfused and not (flash or fused),
        available,
    )


def get_qkv_format(
    qkv_layout: str = "bshd_bshd_bshd", inference_params: Any = None
) -> tuple[str, str, str]:
    """Formats of a layout: of all three, of queries, of keys and values.

    With a cache the formats of queries and keys may differ, e.g. ``thd_2bshd``.
    """
    parts = qkv_layout.replace("paged_kv_", "").split("_")
    q_format = "".join(letter for letter in parts[0] if letter.isalpha())
    if inference_params is None:
        return q_format, q_format, q_format
    kv_format = "".join(letter for letter in parts[1] if letter.isalpha())
    return q_format if q_format == kv_format else f"{q_format}_2{kv_format}", q_format, kv_format


def get_qkv_layout(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qkv_format: str = "sbhd",
    inference_params: Any = None,
) -> tuple[str, torch.Tensor, torch.Tensor, torch.Tensor, str, str]:
    """How the tensors lie in memory: the layout, the tensors, formats of queries and of keys.

    ``sb3hd`` and ``sbh3d``: views of one tensor [s, b, 3, h, d] or [s, b, h, 3, d];
    ``sbhd_sb2hd`` and ``sbhd_sbh2d``: keys and values are views of one; else three tensors.

    :raises AssertionError: a last dimension that is not contiguous.
    """
    assert all(one.stride(-1) == 1 for one in (q, k, v)), (
        "q, k and v must have stride 1 in their last dimension!"
    )
    q_format, _, kv_format = qkv_format.partition("_2")
    kv_format = kv_format or q_format
    layout = f"{q_format}_{kv_format}_{kv_format}"
    if q_format == kv_format:
        triple, pair = _interleaved((q, k, v)), _interleaved((k, v))
        if triple is not None:
            layout = f"{q_format[:-triple]}3{q_format[-triple:]}"
        elif pair is not None:
            layout = f"{q_format}_{q_format[:-pair]}2{q_format[-pair:]}"
    if inference_params is not None and inference_params.is_paged:
        layout = f"paged_kv_{layout}"
    return layout, q, k, v, q_format, kv_format


def _interleaved(tensors: tuple[torch.Tensor, ...]) -> int | None:
    """Letters behind the number that interleaves views of one tensor: 2 (3hd) or 1 (h3d)."""
    first = tensors[0]
    memory = first.untyped_storage().data_ptr()
    for one in tensors[1:]:
        same = one.shape == first.shape and one.stride() == first.stride()
        if not same or one.untyped_storage().data_ptr() != memory:
            return None
    steps = {one.storage_offset() - other.storage_offset() for other, one in pairwise(tensors)}
    heads, size = first.shape[-2:]
    count = len(tensors)
    if steps == {heads * size} and first.stride(-3) == count * heads * size:
        return 2
    if steps == {size} and first.stride(-2) == count * size:
        return 1
    return None


def check_set_window_size(
    attn_mask_type: str, window_size: tuple[int, int] | None = None
) -> tuple[int, int]:
    """The window that goes with a mask: (left, right), -1 for no limit.

    Causal masks end at the query, (-1, 0) or (left, 0); the others take (-1, -1) or two limits.

    :raises AssertionError: a window or a mask type that does not exist.
    """
    causal = attn_mask_type in _CAUSAL_TYPES
    assert causal or attn_mask_type in ("no_mask", "padding", "arbitrary"), (
        f"Invalid attn_mask_type: {attn_mask_type}"
    )
    right = 0 if causal else -1
    if window_size is None:
        return (-1, right)
    left, given = window_size
    if causal:
        expected = "(-1, 0) or (>=0, 0)"
        fits, mendable = given == 0 and left >= -1, (left, given) == (-1, -1) or left >= 0
    else:
        expected = "(-1, -1) or (>=0, >=0)"
        fits = (left, given) == (-1, -1) or (left >= 0 and given >= 0)
        mendable = (left, given) == (-1, 0)
    message = f"window_size should be {expected} for attn_mask_type={attn_mask_type}"
    assert fits or mendable, message
    if not fits:
        warnings.warn(message, stacklevel=2)
    return (left, given) if fits else (left, right)


def combine_and_quantize(
    qkv_layout: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qkv_quantizer: Any
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values in FP8 with one scale for all three, whatever their layout."""
    tensors = (q, k, v)
    packed = qkv_quantizer(torch.cat([one.reshape(-1) for one in tensors]))
    parts = packed._data.split([one.numel() for one in tensors])
    return tuple(
        type(packed).make_like(packed, data=part.view(one.shape), shape=one.shape)
        for part, one in zip(parts, tensors, strict=True)
    )
