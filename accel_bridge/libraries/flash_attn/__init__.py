"""flash-attn's interface on the active backend's attention kernel.

It claims the newest version that Transformer Engine and Megatron accept, 2.8.3.
"""

from __future__ import annotations

from accel_bridge.libraries._library import LIBRARIES

__version__ = LIBRARIES["flash_attn"].version

_PACKED = (
    "flash_attn_kvpacked_func flash_attn_qkvpacked_func "
    "flash_attn_varlen_kvpacked_func flash_attn_varlen_qkvpacked_func"
)
_FUNCTIONS = f"flash_attn_func flash_attn_varlen_func flash_attn_with_kvcache {_PACKED}"

#: Public module -> the module here that implements it, and its names.
MODULES = {
    "flash_attn.flash_attn_interface": (
        "_attention",
        f"{_FUNCTIONS} _flash_attn_backward _flash_attn_forward _flash_attn_varlen_backward "
        "_flash_attn_varlen_forward _wrapped_flash_attn_backward _wrapped_flash_attn_forward "
        "_wrapped_flash_attn_varlen_backward _wrapped_flash_attn_varlen_forward",
    ),
    "flash_attn": ("_attention", _FUNCTIONS),
    "flash_attn.bert_padding": (
        "_attention",
        "index_first_axis index_put_first_axis pad_input rearrange unpad_input",
    ),
    "flash_attn.ops.triton.rotary": ("_rotary", "apply_rotary"),
    "flash_attn.layers.rotary": (
        "_rotary",
        "RotaryEmbedding apply_rotary_emb apply_rotary_emb_func apply_rotary_emb_kv_ "
        "apply_rotary_emb_qkv_ apply_rotary_emb_torch rotate_half apply_rotary",
    ),
    "flash_attn.ops.triton.cross_entropy": ("_layers", "cross_entropy_loss"),
    "flash_attn.losses.cross_entropy": ("_layers", "CrossEntropyLoss cross_entropy_loss"),
    "flash_attn.ops.activations": (
        "_layers",
        "SwiGLUFunction bias_gelu bias_gelu_back bias_gelu_impl fast_gelu_impl gelu_bwd gelu_fwd "
        "relu_bwd sqrelu_bwd sqrelu_fwd swiglu",
    ),
    "flash_attn.ops.fused_dense": (
        "_layers",
        "FusedDense FusedMLP fused_dense_func fused_mlp_func gelu_fwd sqrelu_fwd",
    ),
    "flash_attn.modules.mlp": ("_layers", "FusedMLP GatedMlp Mlp swiglu"),
    "flash_attn.modules.mha": (
        "_layers",
        "CrossAttention FlashCrossAttention FlashSelfAttention SelfAttention get_alibi_slopes "
        f"{_PACKED}",
    ),
    "flash_attn.ops.triton.layer_norm": (
        "_norms",
        "RMSNorm layer_norm_fn layer_norm_linear_fn rms_norm_fn",
    ),
    "flash_attn.ops.layer_norm": (
        "_dropout_norms",
        "DropoutAddLayerNorm dropout_add_layer_norm dropout_add_layer_norm_parallel_residual "
        "layer_norm layer_norm_fn",
    ),
    "flash_attn.ops.rms_norm": (
        "_dropout_norms",
        "DropoutAddRMSNorm RMSNorm dropout_add_rms_norm dropout_add_rms_norm_parallel_residual "
        "rms_norm rms_norm_fn",
    ),
}
