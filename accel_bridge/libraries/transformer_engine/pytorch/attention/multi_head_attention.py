"""Attention with its projections: queries, keys and values, normalization, rotation, output.

Legend: s sequence (sq queries, sk keys), b batch, h hidden size, n query heads and g key heads of
this tensor-parallel rank, d head size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.libraries.transformer_engine_torch._attention_call import split_of

from ..distributed import get_distributed_world_size
from ..module import LayerNormLinear, Linear
from ._projections import qk_norms, split_key_value, split_mixed
from .dot_product_attention import DotProductAttention
from .dot_product_attention._masks import Masks
from .dot_product_attention.dot_product_attention import Group
from .inference import InferenceParams
from .rope import apply_rotary_pos_emb

__all__ = ["MultiheadAttention"]

_BIAS_TYPES: Final = ("pre_scale_bias", "post_scale_bias", "no_bias", "alibi")

#: Angles of queries and keys, or of both.
Angles = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class MultiheadAttention(torch.nn.Module):
    """Self- or cross-attention of [s, b, h] (or [b, s, h], [t, h]) with all its projections.

    Parameters are Transformer Engine's. ``fuse_qkv_params=False`` keeps ``query_weight``,
    ``key_weight`` and ``value_weight`` apart; with it, ``qkv_weight_interleaved`` tells that each
    group's queries, key and value stand side by side. ``ub_*`` ask for userbuffers, which do not
    exist here.

    :raises AssertionError: heads, groups and ranks that do not divide.
    :raises ValueError: an unknown ``qk_norm_type``.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        kv_channels: int | None = None,
        attention_dropout: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], Any] | None = None,
        layer_number: int | None = None,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        tp_group: dist.ProcessGroup | None = None,
        tp_size: int = 1,
        num_gqa_groups: int | None = None,
        fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        sequence_parallel: bool = False,
        params_dtype: torch.dtype | None = None,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        input_layernorm: bool = False,
        attention_type: str = "self",
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        rotary_pos_interleaved: bool = False,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        bias: bool = True,
        normalization: str = "LayerNorm",
        device: torch.device | str = "cuda",
        qkv_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        softmax_type: str = "vanilla",
    ) -> None:
        super().__init__()
        assert attention_type in ("self", "cross"), f"attention_type {attention_type} not supported"
        assert layer_number is None or layer_number > 0, "layer_number must be a positive integer"
        self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
        self.window_size, self.bottom_right_diagonal = window_size, bottom_right_diagonal
        self.layer_number = 1 if layer_number is None else layer_number
        self.input_layernorm, self.attention_type = input_layernorm, attention_type
        self.get_rng_state_tracker, self.tp_group = get_rng_state_tracker, tp_group
        self.return_bias, self.return_layernorm_output = return_bias, return_layernorm_output
        self.params_dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        self.num_attention_heads, self.softmax_type = num_attention_heads, softmax_type
        self.cp_size, self.cp_rank = 1, 0
        self.qkv_weight_interleaved = qkv_weight_interleaved and fuse_qkv_params
        self.rotary_pos_interleaved = rotary_pos_interleaved
        self.qk_norm_before_rope = qk_norm_before_rope
        self.tp_size = tp_size if tp_group is None else get_distributed_world_size(tp_group)
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.num_gqa_groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        assert num_attention_heads % self.num_gqa_groups == 0, (
            "The number of attention heads must be divisible by the number of GQA groups!"
        )
        assert num_attention_heads % self.tp_size == 0, (
            "The number of attention heads must be divisible by tensor parallel size!"
        )
        assert self.num_gqa_groups % self.tp_size == 0, (
            "The number of GQA groups must be divisible by tensor parallel size!"
        )
        self.num_attention_heads_per_partition = num_attention_heads // self.tp_size
        self.num_gqa_groups_per_partition = self.num_gqa_groups // self.tp_size
        head = kv_channels or hidden_size // num_attention_heads
        self.hidden_size_per_attention_head = head
        self.hidden_size_q, self.hidden_size_kv = (
            head * num_attention_heads,
            head * self.num_gqa_groups,
        )
        self.name = name
        self.q_norm, self.k_norm = qk_norms(
            qk_norm_type, head, qk_norm_eps, device, seq_length, micro_batch_size
        )
        linear = {
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "tp_group": tp_group,
            "tp_size": self.tp_size,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": sequence_parallel,
            "params_dtype": self.params_dtype,
            "device": device,
            "bias": bias,
        }
        column: dict[str, Any] = {
            **linear,
            "init_method": init_method,
            "return_bias": False,
            "parallel_mode": "column" if set_parallel_mode else None,
        }
        norm = {
            "eps": layernorm_epsilon,
            "return_layernorm_output": return_layernorm_output,
            "zero_centered_gamma": zero_centered_gamma,
            "normalization": normalization,
            "ub_bulk_wgrad": ub_bulk_wgrad,
            "ub_bulk_dgrad": ub_bulk_dgrad,
            "ub_overlap_rs_dgrad": ub_overlap_rs_dgrad,
            "ub_overlap_ag": ub_overlap_ag,
            "ub_name": "qkv",
        }
        kv, fused = self.hidden_size_kv, fuse_qkv_params
        if attention_type == "self":
            parts = OrderedDict(query=self.hidden_size_q, key=kv, value=kv)
            column["parameters_split"] = None if fused else parts
            size = self.hidden_size_q + 2 * kv
            if input_layernorm:
                inner = self._inner("layernorm_linear_qkv")
                self.layernorm_qkv = LayerNormLinear(
                    hidden_size, size, name=inner, **norm, **column
                )
            else:
                self.qkv = Linear(hidden_size, size, name=self._inner("linear_qkv"), **column)
        else:
            if input_layernorm:
                self.layernorm_query = LayerNormLinear(
                    hidden_size,
                    self.hidden_size_q,
                    name=self._inner("layernorm_linear_q"),
                    parameters_split=None if fused else ("query",),
                    **norm,
                    **column,
                )
            else:
                self.query_layer = Linear(hidden_size, self.hidden_size_q, **column)
            self.key_value = Linear(
                hidden_size,
                2 * kv,
                name=self._inner("linear_kv"),
                parameters_split=None if fused else ("key", "value"),
                **column,
            )
        self.core_attention = DotProductAttention(
            num_attention_heads,
            head,
            num_gqa_groups=self.num_gqa_groups,
            attention_dropout=attention_dropout,
            qkv_format=qkv_format,
            tp_size=self.tp_size,
            get_rng_state_tracker=get_rng_state_tracker,
            sequence_parallel=sequence_parallel,
            tp_group=tp_group,
            layer_number=self.layer_number,
            attention_type=attention_type,
            softmax_type=softmax_type,
        )
        self.proj = Linear(
            self.hidden_size_q,
            hidden_size,
            init_method=output_layer_init_method,
            return_bias=return_bias,
            parallel_mode="row" if set_parallel_mode else None,
            ub_overlap_rs=ub_overlap_rs,
            ub_overlap_ag=ub_overlap_ag,
            ub_name="proj",
            name=self._inner("proj"),
            **linear,
        )

    def _inner(self, name: str) -> str | None:
        return None if self.name is None else f"{self.name}.{name}"

    def set_tensor_parallel_group(self, tp_group: dist.ProcessGroup | None) -> None:
        """Note the group; the projections have methods of their own."""
        self.tp_group = tp_group

    def set_context_parallel_group(
        self,
        cp_group: Group,
        cp_global_ranks: Sequence[int] | None,
        cp_stream: torch.cuda.Stream | None,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Split sequences over ``cp_group``: see :class:`DotProductAttention`."""
        if isinstance(cp_group, list):
            assert cp_comm_type == "a2a+p2p", (
                "Only cp_comm_type of a2a+p2p requires hierarchical CP groups!"
            )
            assert len(cp_group) == 2, (
                "cp_comm_type = a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]!"
            )
        split = split_of(cp_group, cp_comm_type)
        self.cp_size = 1 if split is None else split.size
        self.cp_rank = 0 if split is None else split.rank
        for child in list(self.modules())[1:]:
            if isinstance(child, DotProductAttention):
                child.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Masks | None = None,
        encoder_output: torch.Tensor | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: InferenceParams | None = None,
        rotary_pos_emb: Angles | None = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        cu_seqlens_q_padded: torch.Tensor | None = None,
        cu_seqlens_kv_padded: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        fast_zero_fill: bool = True,
        pad_between_seqs: bool | None = None,
    ) -> Any:
        """[sq, b, h] -> [sq, b, h]; with it the bias and the normalized input, where asked for.

        :param encoder_output: [sk, b, h], for cross-attention.
        """
        mask_type = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        window = self.window_size if window_size is None else window_size
        if bottom_right_diagonal is None:
            bottom_right_diagonal = self.bottom_right_diagonal
        if "padding" in mask_type and attention_mask is not None:
            masks = attention_mask if isinstance(attention_mask, tuple) else (attention_mask,)
            assert all(mask.dtype == torch.bool for mask in masks), (
                "Attention mask must be in boolean type!"
            )
        assert core_attention_bias_type in _BIAS_TYPES, (
            f"core_attention_bias_type {core_attention_bias_type} is not supported!"
        )
        if (
            inference_params is not None
            and self.layer_number not in inference_params.cache_manager.cache
        ):
            inference_params.allocate_memory(self.layer_number)
        project = (
            self._self_projections if self.attention_type == "self" else self._cross_projections
        )
        query, key, value, normalized = project(hidden_states, encoder_output, is_first_microbatch)
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm_before_rope:
            query, key = self.q_norm(query), self.k_norm(key)
        if rotary_pos_emb is not None:
            pairs = rotary_pos_emb if isinstance(rotary_pos_emb, tuple) else (rotary_pos_emb,) * 2
            lengths = (cu_seqlens_q, cu_seqlens_kv)
            if pad_between_seqs:
                lengths = (cu_seqlens_q_padded, cu_seqlens_kv_padded)
            starts = None if inference_params is None else inference_params.get_seqlens_pre_step()
            query, key = (
                self._rotated(part, angles, ends, starts)
                for part, angles, ends in zip((query, key), pairs, lengths, strict=True)
            )
        if self.q_norm is not None and self.k_norm is not None and not self.qk_norm_before_rope:
            query, key = self.q_norm(query), self.k_norm(key)
        context = self.core_attention(
            query,
            key,
            value,
            qkv_format=self.qkv_format,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_kv=cu_seqlens_kv,
            cu_seqlens_q_padded=cu_seqlens_q_padded,
            cu_seqlens_kv_padded=cu_seqlens_kv_padded,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_kv=max_seqlen_kv,
            attention_mask=attention_mask,
            attn_mask_type=mask_type,
            window_size=window,
            bottom_right_diagonal=bottom_right_diagonal,
            checkpoint_core_attention=checkpoint_core_attention,
            core_attention_bias_type=core_attention_bias_type,
            core_attention_bias=core_attention_bias,
            alibi_slopes=alibi_slopes,
            fast_zero_fill=fast_zero_fill,
            inference_params=inference_params,
            pad_between_seqs=pad_between_seqs,
        )
        projected = self.proj(context, is_first_microbatch=is_first_microbatch)
        outputs = projected if self.return_bias else (projected,)
        if self.input_layernorm and self.return_layernorm_output:
            outputs = (*outputs, normalized)
        return outputs if len(outputs) > 1 else outputs[0]

    def _projected(
        self, first: Any, second: Any, hidden_states: torch.Tensor, first_microbatch: bool | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What a projection gives, and the normalized input if it was asked for."""
        module = first if self.input_layernorm else second
        result = module(hidden_states, is_first_microbatch=first_microbatch)
        return result if isinstance(result, tuple) else (result, None)

    def _self_projections(
        self,
        hidden_states: torch.Tensor,
        encoder_output: torch.Tensor | None,
        first_microbatch: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Query [.., n, d], key and value [.., g, d] of the hidden states [.., h]."""
        mixed, normalized = self._projected(
            getattr(self, "layernorm_qkv", None),
            getattr(self, "qkv", None),
            hidden_states,
            first_microbatch,
        )
        groups, size = self.num_gqa_groups_per_partition, self.hidden_size_per_attention_head
        repeats = self.num_attention_heads_per_partition // groups
        query, key, value = split_mixed(mixed, groups, repeats, size, self.qkv_weight_interleaved)
        return query, key, value, normalized

    def _cross_projections(
        self,
        hidden_states: torch.Tensor,
        encoder_output: torch.Tensor | None,
        first_microbatch: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Query [.., n, d] of the hidden states; key and value [.., g, d] of the encoder's."""
        assert encoder_output is not None, "cross-attention needs encoder_output"
        mixed = self.key_value(encoder_output, is_first_microbatch=first_microbatch)
        groups, size = self.num_gqa_groups_per_partition, self.hidden_size_per_attention_head
        key, value = split_key_value(mixed, groups, size, self.qkv_weight_interleaved)
        query, normalized = self._projected(
            getattr(self, "layernorm_query", None),
            getattr(self, "query_layer", None),
            hidden_states,
            first_microbatch,
        )
        query = query.unflatten(-1, (self.num_attention_heads_per_partition, size))
        return query, key, value, normalized

    def _rotated(
        self,
        part: torch.Tensor,
        angles: torch.Tensor,
        ends: torch.Tensor | None,
        starts: torch.Tensor | None,
    ) -> torch.Tensor:
        return apply_rotary_pos_emb(
            part,
            angles,
            self.qkv_format,
            fused=True,
            cu_seqlens=ends,
            cp_size=self.cp_size,
            cp_rank=self.cp_rank,
            start_positions=starts,
            interleaved=self.rotary_pos_interleaved,
        )
