"""What DotProductAttention refuses, in Transformer Engine's words."""

from __future__ import annotations

import os
from typing import Any, Final

import torch

from accel_bridge.errors import BridgeError

from ...quantization import FP8GlobalStateManager
from ._call import LAYOUTS

#: Names of masks.
_MASK_TYPES: Final = tuple(
    "no_mask padding causal arbitrary padding_causal causal_bottom_right "
    "padding_causal_bottom_right".split()
)


def check_tensors(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    layout: str,
    head_sizes: tuple[int, int],
    groups: int,
) -> None:
    """:param head_sizes: of queries and keys, and of values.

    :param groups: heads of keys and values on this rank.
    :raises AssertionError: tensors that do not fit the module or one another.
    """
    dims = 3 if layout == "thd" else 4
    assert layout in LAYOUTS, (
        "DotProductAttention only supports qkv_format = {'sbhd', 'bshd', 'thd'}!"
    )
    assert query.dim() == key.dim() == value.dim() == dims, (
        f"Queries, keys and values must be {dims}D tensors when qkv_format={layout!r}!"
    )
    assert query.dtype == key.dtype == value.dtype, (
        "Queries, keys and values must have the same data type!"
    )
    assert key.shape[:-1] == value.shape[:-1], (
        "Keys and values must have the same batch size, sequence length and number of heads!"
    )
    size_k, size_v = head_sizes
    sizes = (query.shape[-1], key.shape[-1], value.shape[-1])
    assert sizes == (size_k, size_k, size_v), (
        f"Queries and keys must have head_dim = {size_k} and values {size_v}, not {sizes}!"
    )
    assert key.shape[-2] == groups, (
        f"Keys and values must have num_gqa_group = {groups} heads! Found {key.shape[-2]}."
    )
    if FP8GlobalStateManager.is_fp8_enabled():
        refuse_fp8(FP8GlobalStateManager.get_fp8_recipe())


def mask_type(name: str) -> str:
    """A mask type in its usual spelling.

    :raises AssertionError: there is no such type.
    """
    name = name.replace(",", "_")
    name = "padding_causal" if name == "causal_padding" else name
    assert name in _MASK_TYPES, f"Attention mask type {name} is not supported!"
    return name


def check_documents(
    mask_type: str, cu_seqlens_q: torch.Tensor | None, cu_seqlens_kv: torch.Tensor | None
) -> None:
    """:raises AssertionError: packed sequences without lengths, or with another kind of mask."""
    assert "padding" in mask_type, (
        "Attention mask type must be padding or padding_causal for qkv_format=thd!"
    )
    missing = "cu_seqlens_q and cu_seqlens_kv can not be None when qkv_format = thd!"
    assert cu_seqlens_q is not None, missing
    assert cu_seqlens_kv is not None, missing
    shapes = (cu_seqlens_q.shape, cu_seqlens_kv.shape)
    assert shapes[0] == shapes[1], "cu_seqlens of queries and keys must have the same shape!"
    assert cu_seqlens_q.dim() == 1, "cu_seqlens_q must have shape [batch_size + 1]!"
    assert cu_seqlens_q.dtype == cu_seqlens_kv.dtype == torch.int32, (
        "cu_seqlens_q and cu_seqlens_q must both be in dtype torch.int32!"
    )


def refuse_fp8(recipe: Any) -> None:
    """:raises BridgeError: the recipe asks for attention in FP8."""
    if (recipe.fp8_dpa or recipe.fp8_mha) and os.getenv("NVTE_DPA_FP8_RECIPE") != "F16":
        raise BridgeError(
            "Attention in FP8 is not served.",
            evidence=f"{type(recipe).__name__} with fp8_dpa={recipe.fp8_dpa}, "
            f"fp8_mha={recipe.fp8_mha}",
            next="set fp8_dpa and fp8_mha to False; linear layers stay in FP8",
        )
