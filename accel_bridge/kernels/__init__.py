"""Kernel contracts: names, shapes and semantics, each with a reference in plain PyTorch.

This package knows neither Megatron nor any hardware. It imports torch, so import it late.
"""

from __future__ import annotations

from accel_bridge.kernels._contract import (
    CONTRACTS,
    Contract,
    Kernel,
    Kernels,
    compute_dtype,
    reference_kernel,
    supports_every_call,
    watch_kernels,
)
from accel_bridge.kernels._tensor_cache import TensorCache
from accel_bridge.kernels.activations import BIAS_GELU, GATED_ACTIVATION, GEGLU, SWIGLU
from accel_bridge.kernels.adamw import ADAMW, AdamWOptions
from accel_bridge.kernels.attention import (
    ATTENTION,
    ATTENTION_MAX_LOGIT,
    LAYOUTS,
    AttentionMask,
    AttentionOptions,
    AttentionResult,
    Layout,
    attention_bias,
    from_bnsd,
    hidden_band,
    options_of_sequence,
    sequence_lengths,
    to_bnsd,
)
from accel_bridge.kernels.bias_dropout_add import BIAS_DROPOUT_ADD
from accel_bridge.kernels.causal_convolution import (
    CAUSAL_CONVOLUTION,
    check_convolution,
    convolution_state,
)
from accel_bridge.kernels.context_parallel import Attend, SequenceSplit, context_parallel_attention
from accel_bridge.kernels.cross_entropy import (
    CROSS_ENTROPY,
    LINEAR_CROSS_ENTROPY,
    LOSS_CHUNK,
    group_size,
    saves_memory,
    smoothing_weight,
)
from accel_bridge.kernels.float8 import (
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_QUANTIZE,
    GROUPED_FLOAT8_BLOCK_TRANSPOSE,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    SCALED_MATMUL,
    float8_scale,
)
from accel_bridge.kernels.linear_attention import GATED_DELTA_RULE, STATE_SPACE_SCAN
from accel_bridge.kernels.masked_softmax import SCALED_MASKED_SOFTMAX
from accel_bridge.kernels.norms import (
    LAYER_NORM,
    NORM_BACKWARD,
    NORM_FORWARD,
    RMS_NORM,
    gamma,
)
from accel_bridge.kernels.packed import (
    Sequences,
    packed_attention,
    packed_context_parallel_attention,
)
from accel_bridge.kernels.rotary import ROTARY
from accel_bridge.kernels.token_permute import TOKEN_PERMUTE, TOKEN_UNPERMUTE
from accel_bridge.kernels.weight_gradient import (
    EMBEDDING_GRADIENT,
    GROUPED_MATMUL,
    GROUPED_WEIGHT_GRADIENT,
    WEIGHT_GRADIENT,
)

__all__ = [
    "ADAMW",
    "ATTENTION",
    "ATTENTION_MAX_LOGIT",
    "BIAS_DROPOUT_ADD",
    "BIAS_GELU",
    "CAUSAL_CONVOLUTION",
    "CONTRACTS",
    "CROSS_ENTROPY",
    "EMBEDDING_GRADIENT",
    "FLOAT8_BLOCK_QUANTIZE",
    "FLOAT8_CURRENT_QUANTIZE",
    "FLOAT8_QUANTIZE",
    "GATED_ACTIVATION",
    "GATED_DELTA_RULE",
    "GEGLU",
    "GROUPED_FLOAT8_BLOCK_TRANSPOSE",
    "GROUPED_FLOAT8_QUANTIZE",
    "GROUPED_MATMUL",
    "GROUPED_SCALED_MATMUL",
    "GROUPED_SCALED_WEIGHT_GRADIENT",
    "GROUPED_WEIGHT_GRADIENT",
    "LAYER_NORM",
    "LAYOUTS",
    "LINEAR_CROSS_ENTROPY",
    "LOSS_CHUNK",
    "NORM_BACKWARD",
    "NORM_FORWARD",
    "RMS_NORM",
    "ROTARY",
    "SCALED_MASKED_SOFTMAX",
    "SCALED_MATMUL",
    "STATE_SPACE_SCAN",
    "SWIGLU",
    "TOKEN_PERMUTE",
    "TOKEN_UNPERMUTE",
    "WEIGHT_GRADIENT",
    "AdamWOptions",
    "Attend",
    "AttentionMask",
    "AttentionOptions",
    "AttentionResult",
    "Contract",
    "Kernel",
    "Kernels",
    "Layout",
    "SequenceSplit",
    "Sequences",
    "TensorCache",
    "attention_bias",
    "check_convolution",
    "compute_dtype",
    "context_parallel_attention",
    "convolution_state",
    "float8_scale",
    "from_bnsd",
    "gamma",
    "group_size",
    "hidden_band",
    "options_of_sequence",
    "packed_attention",
    "packed_context_parallel_attention",
    "reference_kernel",
    "saves_memory",
    "sequence_lengths",
    "smoothing_weight",
    "supports_every_call",
    "to_bnsd",
    "watch_kernels",
]
