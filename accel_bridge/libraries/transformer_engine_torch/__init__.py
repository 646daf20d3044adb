"""NVIDIA's compiled extension ``transformer_engine_torch``, served from kernel contracts.

Transformer Engine's own Python, unmodified, stands above it. :data:`MODULES` says which module of
this package serves a name; modules are imported when one of their names is first asked for. A name
that is known but not served raises :class:`NotServedError` when it is called, not when it is
imported: Transformer Engine imports names that a model never calls. Any other name is an
AttributeError, as in the compiled extension of a release that does not have it.

Importing this package imports no torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final, NoReturn

from accel_bridge.errors import BridgeError

#: Module of this package -> the names that it serves.
MODULES: Final[dict[str, str]] = {
    "enums": (
        "DType NVTE_Bias_Type NVTE_Mask_Type NVTE_Softmax_Type NVTE_QKV_Format NVTE_QKV_Layout "
        "NVTE_Fused_Attn_Backend Float8BlockScaleTensorFormat CommOverlapType CommOverlapAlgo "
        "FP8FwdTensors FP8BwdTensors NVTERoutingMapFormat NVTEQBHistogramMode NVTEScalingMode "
        "FP8TensorMeta"
    ),
    "gemm": (
        "generic_gemm get_num_cublas_streams te_general_grouped_gemm "
        "te_general_grouped_gemm_for_grouped_tensor te_general_grouped_gemm_for_discrete_in "
        "te_general_grouped_gemm_for_discrete_out get_grouped_gemm_setup_workspace_size "
        "group_quantize group_dequantize bgrad_group_quantize group_requantize_inplace "
        "grouped_swizzle_for_gemm splits_to_offsets splits_to_offsets_multi "
        "copy_data_ptrs_to_device convert_host_pointers_to_tensor "
        "get_device_pointer_for_data_and_scales grouped_mlp_experimental"
    ),
    "layers": (
        "gelu qgelu relu srelu silu geglu qgeglu reglu sreglu swiglu glu situglu dgelu dqgelu "
        "drelu dsrelu dsilu dgeglu dqgeglu dreglu dsreglu dswiglu dglu dsituglu dbias_dgelu "
        "dbias_dqgelu dbias_drelu dbias_dsrelu dbias_dsilu scaled_swiglu scaled_srelu "
        "scaled_situglu scaled_dswiglu scaled_dsrelu scaled_dsituglu clamped_swiglu "
        "clamped_dswiglu scaled_clamped_swiglu scaled_clamped_dswiglu layernorm_fwd "
        "layernorm_bwd rmsnorm_fwd rmsnorm_bwd rmsnorm_bwd_add scaled_softmax_forward "
        "scaled_softmax_backward scaled_masked_softmax_forward scaled_masked_softmax_backward "
        "scaled_upper_triang_masked_softmax_forward scaled_upper_triang_masked_softmax_backward "
        "scaled_aligned_causal_masked_softmax_forward "
        "scaled_aligned_causal_masked_softmax_backward"
    ),
    "quantization": (
        "quantize dequantize bgrad_quantize split_quantize multi_tensor_quantize "
        "create_empty_quantized_tensor compute_amax fp8_transpose swap_first_dims "
        "swizzle_scales_for_gemm_ multi_tensor_swizzle_scales_for_gemm_ "
        "multi_tensor_swizzle_scales_for_gemm_unchecked_ "
        "fused_amax_and_scale_update_after_reduction fp8_block_scaling_partial_cast "
        "fp8_block_scaling_compute_partial_amax mxfp8_scaling_compute_partial_amax "
        "mxfp8_scaling_partial_cast"
    ),
    "nvfp4": (
        "nvfp4_2d_compute_partial_amax nvfp4_2d_multi_tensor_transpose nvfp4_2d_partial_cast "
        "nvfp4_2d_scale_transpose nvfp4_compute_global_scale nvfp4_compute_per_block_scale "
        "nvfp4_data_transpose nvfp4_expand_scale_to_fp8 nvfp4_fused_scale "
        "nvfp4_group_quantize_with_amax nvfp4_quantize_with_amax "
        "nvfp4_multi_tensor_2d_partial_cast nvfp4_multi_tensor_compute_partial_amax "
        "nvfp4_multi_tensor_fused_scale"
    ),
    "multi_tensor": (
        "multi_tensor_adam multi_tensor_adam_capturable multi_tensor_adam_fp8 "
        "multi_tensor_adam_capturable_master multi_tensor_adam_param_remainder multi_tensor_sgd "
        "multi_tensor_scale multi_tensor_scale_tensor multi_tensor_l2norm "
        "multi_tensor_unscale_l2norm multi_tensor_compute_scale_and_scale_inv "
        "multi_tensor_compute_scale_inv_e8m0"
    ),
    "attention": (
        "get_fused_attn_backend fused_attn_fwd fused_attn_bwd FusedAttentionParams "
        "fa_prepare_fwd fa_prepare_bwd multi_tensor_transpose_to_bhsd"
    ),
    "sequences": (
        "copy_to_kv_cache convert_thd_to_bshd convert_bshd_to_thd thd_read_half_tensor "
        "thd_second_half_lse_correction thd_read_second_half_lse thd_out_correction "
        "thd_grad_correction thd_get_partitioned_indices thd_cp_rank_order_to_sequence_order "
        "thd_sequence_order_to_cp_rank_order thd_copy_valid_tokens_from_per_split_to_rank_local"
    ),
    "rope": (
        "fused_rope_forward fused_rope_backward fused_qkv_rope_forward fused_qkv_rope_backward"
    ),
    "moe": (
        "fused_topk_with_score_function_fwd fused_topk_with_score_function_bwd "
        "fused_score_for_moe_aux_loss_fwd fused_score_for_moe_aux_loss_bwd "
        "fused_moe_aux_loss_fwd fused_moe_aux_loss_bwd fused_moe_aux_loss_fwd_graph_safe "
        "fused_topk_with_score_function_qb_fwd moe_permute_fwd moe_permute_bwd "
        "moe_unpermute_fwd moe_unpermute_bwd fused_multi_row_padding fused_multi_row_unpadding "
        "multi_tensor_pad_last_dim"
    ),
    "misc": (
        "get_cublasLt_version get_cudnn_version dropout_fwd dropout_bwd bulk_allocate "
        "newton_schulz cusolvermp_ctx_create cusolvermp_ctx_destroy CommOverlapHelper "
        "CommOverlap CommOverlapP2P CommOverlapBase CommOverlapCore CommOverlapP2PBase "
        "bulk_overlap_ag_with_external_gemm device_supports_multicast get_stream_priority_range "
        "ubuf_built_with_mpi init_nvshmem_backend create_nvshmem_tensor nvshmem_finalize "
        "nvshmem_send_on_current_stream nvshmem_wait_on_current_stream ep_combine "
        "ep_combine_bwd ep_dispatch ep_dispatch_bwd ep_finalize ep_get_zero_copy "
        "ep_handle_mem_size ep_initialize ep_prepare ep_prepare_and_dispatch "
        "ep_zero_copy_supported"
    ),
}

#: Name -> the module of this package that serves it.
NAMES: Final = {name: module for module, names in MODULES.items() for name in names.split()}


class NotServedError(BridgeError, NotImplementedError):
    """A function of the compiled extension that is not served here was called."""


def served(name: str) -> bool:
    """Whether :data:`NAMES`'s module has ``name``; imports it, and so torch."""
    try:
        return hasattr(import_module(f"{__name__}.{NAMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{NAMES[name]}":
            raise
        return False


def refuse(name: str) -> NoReturn:
    """:raises NotServedError: always."""
    raise NotServedError(
        f"transformer_engine_torch.{name} is not served by accel_bridge",
        evidence="Transformer Engine runs on accel_bridge's extension here "
        "(`accel-bridge libraries` lists what it serves)",
        next="turn off the feature that needs it, or run where NVIDIA's compiled extension is "
        "installed (`pip install transformer-engine[pytorch]`)",
    )


def _refused(name: str) -> Any:
    def function(*args: Any, **kwargs: Any) -> NoReturn:
        refuse(name)

    function.__name__ = function.__qualname__ = name
    return function


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'transformer_engine_torch' has no attribute {name!r}")
    home = f"{__name__}.{NAMES[name]}"
    value = getattr(sys.modules[home], name) if served(name) else _refused(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES})
