"""A transformer layer: attention, an MLP, and the residual connections around them.

Legend: s sequence, b batch, h hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from accel_bridge.kernels import BIAS_DROPOUT_ADD
from accel_bridge.kernels.active import kernel

from .attention.dot_product_attention._masks import Masks
from .attention.dot_product_attention.dot_product_attention import Group
from .attention.inference import InferenceParams
from .attention.multi_head_attention import Angles, MultiheadAttention
from .distributed import get_distributed_world_size
from .module import LayerNorm, LayerNormMLP, RMSNorm

__all__ = ["TransformerLayer"]

_NORMS: Final[dict[str, Any]] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


class DropPath(torch.nn.Module):
    """Drops whole rows of the first dimension (Huang et al. 2016, arXiv:1603.09382)."""

    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, hidden_state: torch.Tensor) -> torch.Tensor:
        """Rows that stay grow by ``1 / (1 - drop_prob)``."""
        if self.drop_prob == 0.0 or not self.training:
            return hidden_state
        kept = 1.0 - self.drop_prob
        shape = (hidden_state.shape[0],) + (1,) * (hidden_state.dim() - 1)
        rows = torch.rand(shape, dtype=hidden_state.dtype, device=hidden_state.device)
        return hidden_state / kept * (rows + kept).floor()


class TransformerLayer(torch.nn.Module):
    """An encoder or decoder layer of [s, b, h] (or [b, s, h], [t, h]).

    Parameters are Transformer Engine's: see :class:`MultiheadAttention`. ``ub_*`` ask for
    userbuffers, which do not exist here.

    :param layer_type: ``decoder`` adds cross-attention.
    :param parallel_attention_mlp: attention and MLP read the same input.
    :raises AssertionError: options that exclude one another.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], Any] | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_bottom_right_diagonal: bool | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        tp_group: dist.ProcessGroup | None = None,
        tp_size: int = 1,
        params_dtype: torch.dtype | None = None,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        sequence_parallel: bool = False,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        drop_path_rate: float = 0.0,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        ub_tp_comm_overlap: bool = False,
        ub_overlap_ag: bool = True,
        ub_overlap_rs: bool = True,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = True,
        ub_bulk_wgrad: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: dict[str, Any] | None = None,
        normalization: str = "LayerNorm",
        device: torch.device | str = "cuda",
        attn_input_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
    ) -> None:
        super().__init__()
        assert layer_type in ("encoder", "decoder"), f"layer_type {layer_type} not supported"
        if parallel_attention_mlp:
            assert layer_type == "encoder", "parallel_attention requires layer_type='encoder'"
            assert not apply_residual_connection_post_layernorm, (
                "parallel_attention and apply_residual_connection_post_layernorm "
                "not supported simultaneously."
            )
            assert not output_layernorm, (
                "parallel_attention and output_layernorm not supported simultaneously"
            )
        assert fuse_qkv_params or not fuse_wgrad_accumulation, (
            "Gradient accumulation fusion requires single QKV parameter."
        )
        params_dtype = torch.get_default_dtype() if params_dtype is None else params_dtype
        self.self_attn_mask_type, self.window_size = self_attn_mask_type, window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.enc_dec_attn_mask_type = enc_dec_attn_mask_type
        self.enc_dec_window_size = enc_dec_window_size
        self.enc_dec_bottom_right_diagonal = enc_dec_bottom_right_diagonal
        self.layer_number, self.layer_type = layer_number, layer_type
        self.output_layernorm, self.parallel_attention_mlp = (
            output_layernorm,
            parallel_attention_mlp,
        )
        self.apply_residual_connection_post_layernorm = apply_residual_connection_post_layernorm
        self.kv_channels = kv_channels or hidden_size // num_attention_heads
        self.tp_size = tp_size if tp_group is None else get_distributed_world_size(tp_group)
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.seq_length, self.get_rng_state_tracker = seq_length, get_rng_state_tracker
        self.attn_input_format, self.softmax_type = attn_input_format, softmax_type
        self.name = name
        shared: dict[str, Any] = {
            "tp_group": tp_group,
            "tp_size": self.tp_size,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": self.sequence_parallel,
            "params_dtype": params_dtype,
            "return_layernorm_output": apply_residual_connection_post_layernorm,
            "set_parallel_mode": set_parallel_mode,
            "zero_centered_gamma": zero_centered_gamma,
            "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
            "seq_length": seq_length,
            "micro_batch_size": micro_batch_size,
            "bias": bias,
            "normalization": normalization,
            "device": device,
            "ub_bulk_wgrad": ub_tp_comm_overlap and ub_bulk_wgrad,
            "ub_bulk_dgrad": ub_tp_comm_overlap and ub_bulk_dgrad,
            "ub_overlap_ag": ub_tp_comm_overlap and ub_overlap_ag,
            "ub_overlap_rs": ub_tp_comm_overlap and ub_overlap_rs,
            "ub_overlap_rs_dgrad": ub_tp_comm_overlap and ub_overlap_rs_dgrad,
        }
        attention: dict[str, Any] = {
            **shared,
            "kv_channels": self.kv_channels,
            "attention_dropout": attention_dropout,
            "layernorm_epsilon": layernorm_epsilon,
            "layer_number": layer_number,
            "num_gqa_groups": num_gqa_groups,
            "fuse_qkv_params": fuse_qkv_params,
            "qkv_weight_interleaved": qkv_weight_interleaved and fuse_qkv_params,
            "rotary_pos_interleaved": rotary_pos_interleaved,
            "qkv_format": attn_input_format,
            "softmax_type": softmax_type,
            "qk_norm_type": qk_norm_type,
            "qk_norm_eps": qk_norm_eps,
            "qk_norm_before_rope": qk_norm_before_rope,
        }
        self.self_attention = MultiheadAttention(
            hidden_size,
            num_attention_heads,
            **attention,
            input_layernorm=not output_layernorm,
            attention_type="self",
            return_bias=not parallel_attention_mlp,
            name=self._inner("self_attention"),
        )
        if layer_type == "decoder":
            self.inter_attention = MultiheadAttention(
                hidden_size,
                num_attention_heads,
                **attention,
                attn_mask_type=enc_dec_attn_mask_type,
                input_layernorm=True,
                attention_type="cross",
                return_bias=True,
                name=self._inner("inter_attention"),
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            **shared,
            eps=layernorm_epsilon,
            return_bias=not parallel_attention_mlp,
            activation=activation,
            activation_params=activation_params,
            name=self._inner("layernorm_mlp"),
        )
        self.hidden_dropout = hidden_dropout
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate > 0.0 else None
        if output_layernorm:
            self.layernorm = _NORMS[normalization](
                hidden_size,
                eps=layernorm_epsilon,
                sequence_parallel=self.sequence_parallel,
                params_dtype=params_dtype,
                zero_centered_gamma=zero_centered_gamma,
                device=device,
            )

    def _inner(self, name: str) -> str | None:
        return None if self.name is None else f"{self.name}.{name}"

    def _children_with(self, method: str) -> list[Any]:
        return [child for child in list(self.modules())[1:] if hasattr(child, method)]

    def set_tensor_parallel_group(self, tp_group: dist.ProcessGroup | None) -> None:
        """The group of every module inside."""
        for child in self._children_with("set_tensor_parallel_group"):
            child.set_tensor_parallel_group(tp_group)

    def reset_fp8_meta_tensors(self) -> None:
        """Reset the FP8 state of every module inside."""
        for child in self._children_with("reset_fp8_meta_tensors"):
            child.reset_fp8_meta_tensors()

    def set_context_parallel_group(
        self,
        cp_group: Group,
        cp_global_ranks: Sequence[int] | None,
        cp_stream: torch.cuda.Stream | None,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Split sequences over ``cp_group``: see :class:`DotProductAttention`."""
        for child in self._children_with("set_context_parallel_group"):
            child.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Masks | None = None,
        self_attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        encoder_output: torch.Tensor | None = None,
        enc_dec_attn_mask: Masks | None = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
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
    ) -> torch.Tensor:
        """[s, b, h] -> [s, b, h].

        :param encoder_output: [sk, b, h], what a decoder's cross-attention reads.
        """
        hidden_states = hidden_states.contiguous()
        if self.sequence_parallel and self.seq_length is not None:
            assert hidden_states.shape[0] == self.seq_length // self.tp_size, (
                "Sequence dimension must be split across TP group when using sequence parallel."
            )
        if torch.is_autocast_enabled():
            hidden_states = hidden_states.to(torch.get_autocast_dtype("cuda"))
        common: dict[str, Any] = {
            "inference_params": inference_params,
            "is_first_microbatch": is_first_microbatch,
            "checkpoint_core_attention": checkpoint_core_attention,
            "rotary_pos_emb": rotary_pos_emb,
            "core_attention_bias_type": core_attention_bias_type,
            "core_attention_bias": core_attention_bias,
            "alibi_slopes": alibi_slopes,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_q_padded": cu_seqlens_q_padded,
            "max_seqlen_q": max_seqlen_q,
            "fast_zero_fill": fast_zero_fill,
            "pad_between_seqs": pad_between_seqs,
        }
        attended = self.self_attention(
            hidden_states,
            attention_mask=attention_mask,
            attn_mask_type=self_attn_mask_type or self.self_attn_mask_type,
            window_size=window_size or self.window_size,
            bottom_right_diagonal=_first(bottom_right_diagonal, self.bottom_right_diagonal),
            cu_seqlens_kv=cu_seqlens_q,
            cu_seqlens_kv_padded=cu_seqlens_q_padded,
            max_seqlen_kv=max_seqlen_q,
            **common,
        )
        if not self.parallel_attention_mlp:
            after_norm = self.apply_residual_connection_post_layernorm and not self.output_layernorm
            residual = attended[2] if after_norm else hidden_states
            hidden_states = self._bias_dropout_add(
                attended[0], attended[1], residual, self.drop_path
            )
        if self.layer_type == "decoder":
            crossed = self.inter_attention(
                hidden_states,
                attention_mask=enc_dec_attn_mask,
                attn_mask_type=enc_dec_attn_mask_type or self.enc_dec_attn_mask_type,
                window_size=enc_dec_window_size or self.enc_dec_window_size,
                bottom_right_diagonal=_first(
                    enc_dec_bottom_right_diagonal, self.enc_dec_bottom_right_diagonal
                ),
                encoder_output=encoder_output,
                cu_seqlens_kv=cu_seqlens_kv,
                cu_seqlens_kv_padded=cu_seqlens_kv_padded,
                max_seqlen_kv=max_seqlen_kv,
                **common,
            )
            after_norm = self.apply_residual_connection_post_layernorm
            residual = crossed[2] if after_norm else hidden_states
            hidden_states = self._bias_dropout_add(crossed[0], crossed[1], residual)
        fed = self.layernorm_mlp(hidden_states, is_first_microbatch=is_first_microbatch)
        if self.parallel_attention_mlp:
            output = self._bias_dropout_add(attended, fed, hidden_states, self.drop_path)
        else:
            residual = fed[2] if self.apply_residual_connection_post_layernorm else hidden_states
            output = self._bias_dropout_add(fed[0], fed[1], residual, self.drop_path)
        return self.layernorm(output) if self.output_layernorm else output

    def _bias_dropout_add(
        self,
        hidden_state: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
        drop_path: DropPath | None = None,
    ) -> torch.Tensor:
        if bias is not None and bias.numel() == 0:
            bias = None
        if drop_path is None:
            return kernel(BIAS_DROPOUT_ADD)(
                hidden_state, bias, residual, dropout=self.hidden_dropout, training=self.training
            )
        if bias is not None:
            hidden_state = hidden_state + bias
        dropped = torch.nn.functional.dropout(hidden_state, self.hidden_dropout, self.training)
        added: torch.Tensor = residual + drop_path(dropped)
        return added


def _first(given: bool | None, default: bool | None) -> bool | None:
    return default if given is None else given
