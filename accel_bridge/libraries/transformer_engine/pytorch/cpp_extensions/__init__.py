"""What Transformer Engine's modules ask of its compiled extension, from kernel contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from accel_bridge.libraries.names import lazy_package

#: Functions and enumerations of the compiled extension ``transformer_engine_torch`` by module here.
COMPILED: Final[Mapping[str, Sequence[str]]] = {
    "_enums": (
        "CommOverlapType",
        "DType",
        "FP8BwdTensors",
        "FP8FwdTensors",
        "NVTE_Bias_Type",
        "NVTE_Fused_Attn_Backend",
        "NVTE_Mask_Type",
        "NVTE_QKV_Format",
        "NVTE_QKV_Layout",
        "NVTE_Softmax_Type",
    ),
    "_activations": (
        *("gelu", "dgelu", "geglu", "dgeglu", "qgelu", "dqgelu", "qgeglu", "dqgeglu"),
        *("relu", "drelu", "reglu", "dreglu", "srelu", "dsrelu", "sreglu", "dsreglu"),
        *("silu", "dsilu", "swiglu", "dswiglu", "clamped_swiglu", "clamped_dswiglu"),
        *("glu", "dglu"),
        *("dbias_dgelu", "dbias_dsilu", "dbias_drelu", "dbias_dqgelu", "dbias_dsrelu"),
    ),
    "_norms": ("layernorm_bwd", "layernorm_fwd", "rmsnorm_bwd", "rmsnorm_bwd_add", "rmsnorm_fwd"),
    "_quantize": (
        "bgrad_quantize",
        "compute_amax",
        "dequantize",
        "fp8_transpose",
        "multi_tensor_quantize",
        "quantize",
        "split_quantize",
    ),
    "_scales": (
        "FP8TensorMeta",
        "fp8_block_scaling_compute_partial_amax",
        "fp8_block_scaling_partial_cast",
        "fused_amax_and_scale_update_after_reduction",
        "multi_tensor_compute_scale_and_scale_inv",
    ),
    "_sequences": ("thd_get_partitioned_indices",),
    "gemm": ("generic_gemm", "te_general_grouped_gemm"),
    "_versions": ("get_cublasLt_version", "get_cudnn_version", "get_num_cublas_streams"),
}
_EXPORTS: Final = {
    **COMPILED,
    "gemm": (*COMPILED["gemm"], "general_gemm", "general_grouped_gemm"),
}
__all__ = [name for names in _EXPORTS.values() for name in names]
__getattr__, __dir__ = lazy_package(__name__, _EXPORTS, ("gemm", "fused_attn"))
