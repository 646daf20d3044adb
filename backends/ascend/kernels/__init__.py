"""The NPU's kernels: torch_npu's fused operators behind the contracts.

They are called as ``torch.ops.npu.*``: torch_npu registers them when the backend imports it.
"""

from __future__ import annotations

from typing import Final

from accel_bridge.backends.ascend.kernels import (
    adamw,
    attention,
    gated,
    grouped_matmul,
    masked_softmax,
    norms,
    rotary,
)
from accel_bridge.kernels import (
    CAUSAL_CONVOLUTION,
    EMBEDDING_GRADIENT,
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_QUANTIZE,
    GATED_DELTA_RULE,
    SCALED_MATMUL,
    STATE_SPACE_SCAN,
    TOKEN_PERMUTE,
    TOKEN_UNPERMUTE,
    WEIGHT_GRADIENT,
    Kernels,
    reference_kernel,
)

#: Every contract's kernel on the NPU; plain PyTorch serves the references.
KERNELS: Final = Kernels(
    reference_kernel(
        WEIGHT_GRADIENT, "torch_npu's addmm takes one dtype, so the GEMM is in float32"
    ),
    reference_kernel(
        EMBEDDING_GRADIENT,
        "gradients of linear layers are not fused either, see weight_gradient",
    ),
    reference_kernel(
        TOKEN_PERMUTE,
        "npu_moe_token_permute_with_routing_map needs a fixed number of experts for every token",
    ),
    reference_kernel(
        TOKEN_UNPERMUTE,
        "npu_moe_token_unpermute_with_routing_map needs a fixed number of experts for every token",
    ),
    reference_kernel(CAUSAL_CONVOLUTION, "torch_npu has no operator for it"),
    reference_kernel(STATE_SPACE_SCAN, "its chunks are batched GEMMs"),
    reference_kernel(GATED_DELTA_RULE, "its chunks are batched GEMMs"),
    *(
        reference_kernel(contract, "the 910B has no FP8 formats")
        for contract in (
            *(FLOAT8_QUANTIZE, FLOAT8_CURRENT_QUANTIZE, FLOAT8_BLOCK_QUANTIZE),
            SCALED_MATMUL,
        )
    ),
    *attention.KERNELS,
    *norms.KERNELS,
    *rotary.KERNELS,
    *gated.KERNELS,
    *masked_softmax.KERNELS,
    *adamw.KERNELS,
    *grouped_matmul.KERNELS,
)
