"""Caches of keys and values for inference.

Legend: b sequences of a step, g key heads, d head size, dv of values, t new tokens of a step.
Formats of new tokens: bshd [b, s, g, d], sbhd [s, b, g, d], thd [t, g, d]; caches are bshd.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import torch

from ._kv_caches import (
    KVCacheManager,
    Lengths,
    NonPagedKVCacheManager,
    PagedKVCacheManager,
)

__all__ = ["InferenceParams", "KVCacheManager", "NonPagedKVCacheManager", "PagedKVCacheManager"]


class InferenceParams:
    """Caches of every layer, and which sequences a step is about.

    Before each step :meth:`pre_step` is told the sequences and their numbers of new tokens.

    :param max_ctx_len: longest context; required with ``qkv_format="thd"``.
    :param custom_cache_manager: a class to use instead of the two here.
    :raises AssertionError: sizes that are missing or do not divide.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_sequence_length: int,
        num_heads_kv: int | None = None,
        head_dim_k: int | None = None,
        dtype: torch.dtype | None = None,
        head_dim_v: int | None = None,
        is_paged: bool = False,
        total_num_pages: int | None = None,
        page_size: int | None = None,
        max_ctx_len: int | None = None,
        qkv_format: str = "bshd",
        custom_cache_manager: Callable[..., Any] | None = None,
    ) -> None:
        required: Final = "num_heads_kv, head_dim_k, and dtype are required for InferenceParams"
        assert num_heads_kv is not None, required
        assert head_dim_k is not None, required
        assert dtype is not None, required
        self.max_batch_size, self.max_sequence_length = max_batch_size, max_sequence_length
        self.num_heads_kv, self.head_dim_k, self.dtype = num_heads_kv, head_dim_k, dtype
        self.head_dim_v = head_dim_k if head_dim_v is None else head_dim_v
        self.is_paged = is_paged
        sizes: dict[str, Any] = {
            "max_batch_size": max_batch_size,
            "max_seqlen": max_sequence_length,
            "num_heads": num_heads_kv,
            "head_dim_k": head_dim_k,
            "dtype": dtype,
            "head_dim_v": self.head_dim_v,
        }
        make: Callable[..., Any] = PagedKVCacheManager if is_paged else NonPagedKVCacheManager
        if is_paged:
            assert page_size is not None, "Paged KV cache requires page_size is not None."
            assert max_sequence_length % page_size == 0, (
                "Paged KV cache requires max_sequence_length % page_size = 0."
            )
            assert total_num_pages == max_batch_size * (max_sequence_length // page_size), (
                "Paged KV cache requires total_num_pages = max_batch_size * max_pages_per_seq."
            )
            self.page_size, self.total_num_pages = page_size, total_num_pages
            sizes.update(page_size=page_size, total_num_pages=total_num_pages)
        self.cache_manager = (custom_cache_manager or make)(**sizes)
        if qkv_format == "thd":
            assert max_ctx_len is not None, "max_ctx_len is required when qkv_format=thd!"
            self.max_ctx_len = max_ctx_len
        self.cache_qkv_format = "bshd"
        self._note_format(qkv_format)
        self.sequences_pre_step: Lengths = OrderedDict()
        self.sequences: Lengths = OrderedDict()
        self.batch_size = 0
        device = torch.cuda.current_device()
        self.cu_seqlens_q = torch.zeros(max_batch_size + 1, dtype=torch.int32, device=device)
        self.cu_seqlens_kv = torch.zeros(max_batch_size + 1, dtype=torch.int32, device=device)
        self.pre_step_seqlens = torch.zeros(max_batch_size, dtype=torch.int32, device=device)

    def _note_format(self, qkv_format: str) -> None:
        self.input_qkv_format = self.output_qkv_format = qkv_format
        if qkv_format != self.cache_qkv_format:
            self.output_qkv_format = f"{qkv_format}_2{self.cache_qkv_format}"

    def reset(self) -> None:
        """Forget the sequences."""
        self.sequences = OrderedDict()
        self.cache_manager.reset()

    def allocate_memory(self, layer_number: int) -> None:
        """Make a layer's cache."""
        self.cache_manager.allocate_memory(layer_number)

    def pre_step(self, step_dict: Lengths) -> None:
        """Note a step's sequences and numbers of new tokens, in the batch's order."""
        self.batch_size = len(step_dict)
        self.sequences = self.cache_manager.pre_step(step_dict)
        before = OrderedDict((name, n - step_dict[name]) for name, n in self.sequences.items())
        self.sequences_pre_step = before
        lengths = torch.tensor(list(before.values()), dtype=torch.int32)
        self.pre_step_seqlens[: len(before)].copy_(lengths)
        self._copy_cumulative(self.cu_seqlens_q, list(step_dict.values()))
        self._copy_cumulative(self.cu_seqlens_kv, list(self.sequences.values()))

    def _copy_cumulative(self, target: torch.Tensor, lengths: list[int]) -> None:
        filled = [0, *lengths, *[0] * (self.max_batch_size - len(lengths))]
        target.copy_(torch.tensor(filled).cumsum(0).to(torch.int32))

    def get_seqlens_pre_step(self) -> torch.Tensor:
        """int32 [max_batch_size]: lengths before the step."""
        return self.pre_step_seqlens

    def convert_paged_to_nonpaged(self, layer_number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's caches as [b, max_sequence_length, g, d]."""
        table = self.cache_manager.page_table[: self.batch_size]
        keys, values = (
            cache[table.flatten()].unflatten(0, table.shape).flatten(1, 2)
            for cache in self.cache_manager.cache[layer_number]
        )
        return keys, values

    def step(
        self, layer_number: int, new_k: torch.Tensor, new_v: torch.Tensor, qkv_format: str
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, str]:
        """Store a layer's new tokens.

        :returns: the caches of keys and values, cumulative lengths of new and of all tokens
            (int32 [max_batch_size + 1]), the longest length, and the format, e.g. ``thd_2bshd``.
        """
        self._note_format(qkv_format)
        keys, values = self.cache_manager.step(
            layer_number, new_k, new_v, self.cu_seqlens_q, self.cu_seqlens_kv, qkv_format
        )
        return (
            keys,
            values,
            self.cu_seqlens_q,
            self.cu_seqlens_kv,
            self.max_sequence_length,
            self.output_qkv_format,
        )
