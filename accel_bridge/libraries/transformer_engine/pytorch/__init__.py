"""Transformer Engine's modules and functions for PyTorch.

Source of the list: transformer_engine/pytorch/__init__.py of Transformer Engine 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from accel_bridge.libraries.names import lazy_package

EXPORTS: Final[Mapping[str, Sequence[str]]] = {
    "module": (
        "Fp8Padding",
        "Fp8Unpadding",
        "GroupedLinear",
        "LayerNorm",
        "LayerNormLinear",
        "LayerNormMLP",
        "Linear",
        "RMSNorm",
        "UserBufferQuantizationMode",
        "destroy_ub",
        "initialize_ub",
    ),
    "attention": (
        "DotProductAttention",
        "InferenceParams",
        "MultiheadAttention",
        "RotaryPositionEmbedding",
    ),
    "transformer": ("TransformerLayer",),
    "permutation": (
        "moe_permute",
        "moe_permute_and_pad_with_probs",
        "moe_permute_with_probs",
        "moe_sort_chunks_by_index",
        "moe_sort_chunks_by_index_with_probs",
        "moe_unpermute",
    ),
    "quantization": (
        "autocast",
        "fp8_autocast",
        "fp8_model_init",
        "get_default_recipe",
        "is_fp8_available",
        "is_fp8_block_scaling_available",
        "is_mxfp8_available",
        "is_nvfp4_available",
        "quantized_model_init",
    ),
    "utils": ("get_cudnn_version", "get_device_compute_capability", "is_bf16_available"),
    "torch_version": ("torch_version",),
    "graph": ("make_graphed_callables",),
    "distributed": ("CudaRNGStatesTracker", "checkpoint"),
    "cpu_offload": ("get_cpu_offload_context",),
    "cross_entropy": ("parallel_cross_entropy",),
    "quantized_tensor": (
        "QuantizedTensor",
        "QuantizedTensorStorage",
        "Quantizer",
        "prepare_for_saving",
        "restore_from_saved",
    ),
    "tensor": (
        "Float8BlockQuantizer",
        "Float8BlockwiseQTensor",
        "Float8BlockwiseQTensorStorage",
        "Float8CurrentScalingQuantizer",
        "Float8Quantizer",
        "Float8Tensor",
        "Float8TensorStorage",
        "MXFP8Quantizer",
        "MXFP8Tensor",
        "MXFP8TensorStorage",
        "NVFP4Quantizer",
        "NVFP4Tensor",
        "NVFP4TensorStorage",
    ),
}

#: Modules that the real package has loaded, and that callers reach as its attributes.
SUBMODULES: Final = (
    "attention",
    "constants",
    "cpp_extensions",
    "cpu_offload",
    "cpu_offload_v1",
    "cross_entropy",
    "distributed",
    "float8_tensor",
    "fp8",
    "graph",
    "jit",
    "module",
    "ops",
    "optimizers",
    "permutation",
    "quantization",
    "quantized_tensor",
    "router",
    "tensor",
    "transformer",
    "utils",
)

__getattr__, __dir__ = lazy_package(__name__, EXPORTS, SUBMODULES)
