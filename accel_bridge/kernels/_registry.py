"""The table of contracts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from accel_bridge.kernels._contract import Contract
from accel_bridge.kernels.adamw import ADAMW
from accel_bridge.kernels.attention import ATTENTION
from accel_bridge.kernels.bias_dropout_add import BIAS_DROPOUT_ADD
from accel_bridge.kernels.bias_gelu import BIAS_GELU
from accel_bridge.kernels.causal_convolution import CAUSAL_CONVOLUTION
from accel_bridge.kernels.cross_entropy import CROSS_ENTROPY
from accel_bridge.kernels.embedding_gradient import EMBEDDING_GRADIENT
from accel_bridge.kernels.float8 import (
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_QUANTIZE,
    SCALED_MATMUL,
)
from accel_bridge.kernels.gated import GEGLU, SWIGLU
from accel_bridge.kernels.gated_delta_rule import GATED_DELTA_RULE
from accel_bridge.kernels.grouped_float8 import (
    GROUPED_FLOAT8_BLOCK_TURN,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
)
from accel_bridge.kernels.grouped_matmul import GROUPED_MATMUL
from accel_bridge.kernels.grouped_weight_gradient import GROUPED_WEIGHT_GRADIENT
from accel_bridge.kernels.masked_softmax import SCALED_MASKED_SOFTMAX
from accel_bridge.kernels.max_logit import ATTENTION_MAX_LOGIT
from accel_bridge.kernels.norms import LAYER_NORM, RMS_NORM
from accel_bridge.kernels.rotary import ROTARY
from accel_bridge.kernels.state_space_scan import STATE_SPACE_SCAN
from accel_bridge.kernels.token_permute import TOKEN_PERMUTE, TOKEN_UNPERMUTE
from accel_bridge.kernels.weight_gradient import WEIGHT_GRADIENT

_ALL: Final[tuple[Contract[Any, Any], ...]] = (
    ATTENTION,
    ATTENTION_MAX_LOGIT,
    RMS_NORM,
    LAYER_NORM,
    ROTARY,
    SWIGLU,
    GEGLU,
    BIAS_GELU,
    BIAS_DROPOUT_ADD,
    SCALED_MASKED_SOFTMAX,
    CROSS_ENTROPY,
    ADAMW,
    WEIGHT_GRADIENT,
    EMBEDDING_GRADIENT,
    GROUPED_MATMUL,
    GROUPED_WEIGHT_GRADIENT,
    TOKEN_PERMUTE,
    TOKEN_UNPERMUTE,
    FLOAT8_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_BLOCK_QUANTIZE,
    SCALED_MATMUL,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_FLOAT8_BLOCK_TURN,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    CAUSAL_CONVOLUTION,
    STATE_SPACE_SCAN,
    GATED_DELTA_RULE,
)

#: Every contract by its name.
CONTRACTS: Final[Mapping[str, Contract[Any, Any]]] = MappingProxyType({c.name: c for c in _ALL})
