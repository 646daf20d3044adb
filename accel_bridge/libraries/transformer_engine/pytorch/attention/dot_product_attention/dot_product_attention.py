"""Transformer Engine's DotProductAttention on the active backend's attention kernel."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import (
    ATTENTION,
    ATTENTION_MAX_LOGIT,
    Attend,
    AttentionOptions,
    SequenceSplit,
)
from accel_bridge.kernels.active import attention_layout, kernel
from accel_bridge.kernels.attention_layout import called_in
from accel_bridge.libraries.transformer_engine_torch._attention_call import (
    Padding,
    Tensors,
    attend,
    largest_logit,
    mask_of,
    options_of,
    split_of,
)

from ..._capturing import captures
from ...distributed import checkpoint, get_distributed_world_size
from ...module._extra_state import forgive_missing
from ...module.base import TransformerEngineBaseModule
from ..inference import InferenceParams
from . import utils
from ._cached import attend_cached, attend_cached_by_mask
from ._call import LAYOUTS, with_bias, with_matrices
from ._checks import check_documents, check_tensors, mask_type
from ._masks import Masks

__all__ = ["DotProductAttention"]

utils.AttentionLogging.setup_logging()

#: The last choice of a backend, as Transformer Engine keeps it. A caller that changes
#: ``NVTE_*_ATTN`` sets ``backend_selection_requires_update``.
_attention_backends: Final[dict[str, Any]] = {
    "attention_params": None,
    "use_flash_attention": None,
    "flash_attention_backend": None,
    "use_fused_attention": None,
    "fused_attention_backend": None,
    "use_unfused_attention": None,
    "backend_selection_requires_update": False,
}
#: Choices of a backend by what they depend on: True for the reference.
_CHOSEN: Final[dict[tuple[Any, ...], bool]] = {}
_LOG: Final = logging.getLogger("DotProductAttention")

Group = dist.ProcessGroup | list[dist.ProcessGroup] | None


class DotProductAttention(TransformerEngineBaseModule):
    """``softmax(scale * Q K^T + bias, masked) V``.

    Parameters are Transformer Engine's; FP8 attention is refused. Without dropout in evaluation
    mode. One tensor-parallel rank draws its dropout from the device's generator, more from
    ``get_rng_state_tracker``'s, unless the sequence is parallel too.

    :param kv_channels: head size, or those of keys and values.
    :param window_size: ``(left, right)``, -1 for no limit.
    :param softmax_type: ``off-by-one`` and ``learnable`` add a sink of logit 0 or
        ``softmax_offset`` to the denominator.
    :param return_max_logit: return ``(output, max_logit [n])``.
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: dist.ProcessGroup | None = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Group = None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: torch.cuda.Stream | None = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool | None = False,
    ) -> None:
        super().__init__()
        self.logger = _LOG
        self.qkv_format = qkv_format
        self.attn_mask_type = mask_type(attn_mask_type)
        self.window_size = utils.check_set_window_size(self.attn_mask_type, window_size)
        self.bottom_right_diagonal = bottom_right_diagonal
        if tp_group is not None:
            tp_size = get_distributed_world_size(tp_group)
        self.tp_size = tp_size
        if tp_group is not None or tp_size == 1:
            self.set_tensor_parallel_group(tp_group)
        self.get_rng_state_tracker = get_rng_state_tracker
        self.num_attention_heads = num_attention_heads
        self.layer_number = 1 if layer_number is None else layer_number
        both = (kv_channels, kv_channels) if isinstance(kv_channels, int) else kv_channels
        self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v = both
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        self.num_gqa_groups_per_partition = self.num_gqa_groups // tp_size
        assert num_attention_heads % self.num_gqa_groups == 0, (
            "The number of attention heads must be divisible by the number of GQA groups!"
        )
        assert attention_type in ("self", "cross"), f"attention_type {attention_type} not supported"
        # Switching generators costs the host more than a launch; one rank needs none of its own.
        own_rng = get_rng_state_tracker is not None and not sequence_parallel and tp_size > 1
        self._dropout_rng = get_rng_state_tracker if own_rng else None
        self.deterministic = os.getenv("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"
        self.attention_type = attention_type
        self.attention_dropout = attention_dropout
        self.softmax_scale = 1.0 / math.sqrt(both[0]) if softmax_scale is None else softmax_scale
        self.return_max_logit = return_max_logit
        self.softmax_type = softmax_type
        heads = num_attention_heads // tp_size
        if softmax_type == "vanilla":
            self.softmax_offset = None
        elif softmax_type == "off-by-one":
            self.softmax_offset = torch.zeros(heads, device="cuda")
        elif softmax_type == "learnable":
            # The library leaves memory as it is; zeros are the same on every rank.
            self.register_parameter(
                "softmax_offset",
                torch.nn.Parameter(torch.zeros(heads, device="cuda")),
                get_rng_state_tracker=get_rng_state_tracker,
            )
        else:
            raise ValueError(f"softmax_type {softmax_type!r} is not supported")
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)
        self.register_load_state_dict_post_hook(forgive_missing)  # type: ignore[no-untyped-call]

    def set_context_parallel_group(
        self,
        cp_group: Group,
        cp_global_ranks: Sequence[int] | None,
        cp_stream: torch.cuda.Stream | None,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Split sequences over ``cp_group``.

        :param cp_group: a pair of groups (heads, keys) for ``a2a+p2p``.
        :param cp_comm_type: ``p2p``, ``all_gather``, ``a2a`` or ``a2a+p2p``.
        """
        self.cp_group = cp_group
        self.cp_global_ranks = cp_global_ranks
        self.cp_stream = cp_stream
        self.cp_comm_type = cp_comm_type

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Masks | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        fast_zero_fill: bool = True,
        inference_params: InferenceParams | None = None,
        pad_between_seqs: bool | None = None,
        fp8_output: bool | None = False,
        num_splits: int | None = 1,
    ) -> Any:
        """Query [sq, b, n, d], [b, sq, n, d] or [t, n, d] -> the same with [n * dv] at the end.

        :param attention_mask: True = hidden; [b, 1, 1, s] or a pair of them for padding,
            broadcastable to [b, n, sq, sk] for ``arbitrary``.
        :param cu_seqlens_q: int32 [b + 1]; where it is given, it decides what is padding.
        :param core_attention_bias: [b or 1, n or 1, sq or 1, sk].
        :param alibi_slopes: float32 [n] or [b, n].
        :raises BridgeError: FP8 attention.
        """
        layout = self.qkv_format if qkv_format is None else qkv_format
        check_tensors(
            *(query_layer, key_layer, value_layer, layout),
            (self.hidden_size_per_attention_head_k, self.hidden_size_per_attention_head_v),
            self.num_gqa_groups_per_partition,
        )
        kind = self.attn_mask_type if attn_mask_type is None else mask_type(attn_mask_type)
        window = self.window_size
        if window_size is not None or attn_mask_type is not None:
            window = utils.check_set_window_size(kind, window_size or window)
        if layout == "thd":
            check_documents(kind, cu_seqlens_q, cu_seqlens_kv)
        if inference_params is not None:
            assert "padding" in kind, "KV caching requires padding mask!"
            # New queries stand at the end of what is cached.
            kind = "padding_causal_bottom_right" if kind == "padding_causal" else kind
        if bottom_right_diagonal is None:
            bottom_right_diagonal = self.bottom_right_diagonal
        if "causal" in kind:
            bottom_right_diagonal = "bottom_right" in kind
        mask = mask_of("causal" in kind, window, bottom_right_diagonal is not False)
        options = options_of(
            LAYOUTS[layout],
            mask,
            self.softmax_scale,
            self.attention_dropout if self.training else 0.0,
        )
        if self.softmax_offset is not None:
            options = replace(options, softmax_offset=self.softmax_offset)
        padding = None
        if "padding" in kind and cu_seqlens_q is not None:
            keys = cu_seqlens_q if cu_seqlens_kv is None else cu_seqlens_kv
            padding = Padding(
                cu_seqlens=(cu_seqlens_q, keys),
                padded=(cu_seqlens_q_padded, cu_seqlens_kv_padded),
            )
        tensors = (query_layer, key_layer, value_layer)
        if inference_params is not None:
            return self._cached(tensors, layout, options, inference_params, max_seqlen_q)
        biased = core_attention_bias_type != "no_bias"
        if biased or kind == "arbitrary" or ("padding" in kind and padding is None):
            if biased:
                options = with_bias(
                    options,
                    core_attention_bias_type,
                    core_attention_bias,
                    alibi_slopes,
                    padding,
                    *tensors[:2],
                )
            options = with_matrices(options, kind, attention_mask, padding, *tensors[:2])
            padding = None
        split = split_of(self.cp_group, self.cp_comm_type)
        if split is not None and core_attention_bias_type == "alibi":
            raise BridgeError(
                "Context parallelism cannot be combined with ALiBi.",
                evidence=f"{split.size} context parallel ranks",
                next="use a context parallel size of 1",
            )
        reference = self._uses_reference(kind, core_attention_bias_type, split is not None)
        attention: Attend = ATTENTION.reference if reference else kernel(ATTENTION)
        called = attention_layout()
        if called != "SBHD" and layout == "sbhd" and padding is None and split is None:
            attention = called_in(attention, called)
        with self._dropout_context(options.dropout):
            if checkpoint_core_attention:
                output = self._checkpointed(attention, tensors, options, padding, split)
            else:
                output = attend(attention, *tensors, options, padding, split).flatten(-2)
        if not self.return_max_logit:
            return output
        largest = ATTENTION_MAX_LOGIT.reference if reference else kernel(ATTENTION_MAX_LOGIT)
        return output, largest_logit(largest, *tensors[:2], options, padding, split)

    def _cached(
        self,
        tensors: Tensors,
        layout: str,
        options: AttentionOptions,
        inference_params: InferenceParams,
        max_seqlen_q: int | None,
    ) -> torch.Tensor:
        """Store the new keys and values, and attend to all that are cached.

        :param max_seqlen_q: most new tokens of a sequence, for packed ones; default: the longest
            context that ``inference_params`` was made for.
        """
        self.attention_type = "cross"
        query, key, value = tensors
        keys, values, cu_queries, cu_keys, _, _ = inference_params.step(
            self.layer_number, key, value, layout
        )
        if inference_params.is_paged:
            keys, values = inference_params.convert_paged_to_nonpaged(self.layer_number)
        reference = self._uses_reference("padding", "no_bias", False)
        attention = ATTENTION.reference if reference else kernel(ATTENTION)
        lengths = (cu_queries, cu_keys)
        if not captures():
            return attend_cached(attention, query, (keys, values), options, lengths)
        longest = max_seqlen_q
        if longest is None:
            longest = inference_params.max_ctx_len if layout == "thd" else 0
        return attend_cached_by_mask(attention, query, (keys, values), options, lengths, longest)

    def _dropout_context(self, dropout: float) -> contextlib.AbstractContextManager[Any]:
        if dropout == 0.0 or self._dropout_rng is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = self._dropout_rng().fork()
        return context

    def _checkpointed(
        self,
        attention: Attend,
        tensors: Tensors,
        options: AttentionOptions,
        padding: Padding | None,
        split: SequenceSplit | None,
    ) -> Any:
        """The output, computed again in the backward pass; gradients need tensors as arguments."""

        def run(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            bias: torch.Tensor | None,
            offset: torch.Tensor | None,
        ) -> torch.Tensor:
            given = replace(options, bias=bias, softmax_offset=offset)
            return attend(attention, query, key, value, given, padding, split).flatten(-2)

        return checkpoint(
            run,
            *tensors,
            options.bias,
            options.softmax_offset,
            distribute_saved_activations=False,
            get_rng_state_tracker=self.get_rng_state_tracker,
            tp_group=self.tp_group,
        )

    def _uses_reference(self, mask_type: str, bias_type: str, split: bool) -> bool:
        """Whether the caller left only UnfusedDotProductAttention.

        :raises ValueError: the caller left no backend that can serve the call.
        """
        if _attention_backends["backend_selection_requires_update"]:
            _CHOSEN.clear()
        key = (mask_type, bias_type, self.softmax_type, self.return_max_logit, split)
        if key not in _CHOSEN:
            params = utils.AttentionParams(
                attn_mask_type=mask_type,
                core_attention_bias_type=bias_type,
                softmax_type=self.softmax_type,
                return_max_logit=bool(self.return_max_logit),
                context_parallel=split,
            )
            choice = utils.get_attention_backend(params)
            values = (params, *choice[:5], False)
            _attention_backends.update(zip(_attention_backends, values, strict=True))
            if not (choice[0] or choice[2] or choice[4]):
                raise ValueError(
                    "No dot product attention backend is available for the provided inputs: "
                    "NVTE_FLASH_ATTN, NVTE_FUSED_ATTN and NVTE_UNFUSED_ATTN turn off each that "
                    f"could serve {params}"
                )
            _CHOSEN[key] = choice[4]
        return _CHOSEN[key]
