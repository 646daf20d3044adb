"""Libraries that only work with CUDA, whatever else is installed."""

from __future__ import annotations

from typing import Final

#: Modules that are CUDA code, or load some when they are imported.
CUDA_ONLY: Final = (
    "amp_C",
    "causal_conv1d",
    "fast_hadamard_transform",
    "flash_attn",
    "fused_layer_norm_cuda",
    "fused_weight_gradient_mlp_cuda",
    "grouped_gemm",
    "mamba_ssm",
    "scaled_masked_softmax_cuda",
    "scaled_softmax_cuda",
    "scaled_upper_triang_masked_softmax_cuda",
    "selective_scan_cuda",
)
