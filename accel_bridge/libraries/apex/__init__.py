"""Shim for NVIDIA's Apex: fused optimizers, norms, rotary embeddings and cross-entropy.

``amp``, ``contrib.nccl_allocator`` and Megatron's ``parallel_state`` and ``tensor_parallel`` are
absent. As in the real library there is no ``__version__``: every build of it is 0.1.
"""

from __future__ import annotations

_NORMS = "FusedLayerNorm FusedRMSNorm MixedFusedLayerNorm MixedFusedRMSNorm"
_ROPE = "fused_apply_rotary_pos_emb fused_apply_rotary_pos_emb_thd"
_CALCULATOR = "NumMicroBatchesCalculator build_num_microbatches_calculator"

#: Public module -> the module here that implements it, and its names.
MODULES = {
    "apex.contrib.layer_norm.layer_norm": ("_layers", "FastLayerNorm FastLayerNormFN"),
    "apex.contrib.layer_norm": ("_layers", "FastLayerNorm"),
    "apex.contrib.xentropy.softmax_xentropy": ("_layers", "SoftmaxCrossEntropyLoss"),
    "apex.contrib.xentropy": ("_layers", "SoftmaxCrossEntropyLoss"),
    "apex.mlp.mlp": ("_layers", "MLP mlp_function"),
    "apex.mlp": ("_layers", "MLP"),
    "apex.normalization.fused_layer_norm": (
        "_layers",
        f"{_NORMS} FusedLayerNormAffineFunction FusedLayerNormAffineMixedDtypesFunction "
        "FusedRMSNormAffineFunction FusedRMSNormAffineMixedDtypesFunction fused_layer_norm "
        "fused_layer_norm_affine fused_rms_norm fused_rms_norm_affine "
        "mixed_dtype_fused_layer_norm_affine mixed_dtype_fused_rms_norm_affine",
    ),
    "apex.normalization": ("_layers", _NORMS),
    "apex.parallel": ("_layers", "SyncBatchNorm"),
    "apex.multi_tensor_apply.multi_tensor_apply": ("_optimizers", "MultiTensorApply"),
    "apex.multi_tensor_apply": ("_optimizers", "MultiTensorApply multi_tensor_applier"),
    "apex.optimizers.fused_adagrad": ("_optimizers", "FusedAdagrad"),
    "apex.optimizers.fused_adam": ("_optimizers", "FusedAdam"),
    "apex.optimizers.fused_lamb": ("_optimizers", "FusedLAMB"),
    "apex.optimizers.fused_mixed_precision_lamb": ("_optimizers", "FusedMixedPrecisionLamb"),
    "apex.optimizers.fused_novograd": ("_optimizers", "FusedNovoGrad"),
    "apex.optimizers.fused_sgd": ("_optimizers", "FusedSGD"),
    "apex.optimizers": (
        "_optimizers",
        "FusedAdagrad FusedAdam FusedLAMB FusedMixedPrecisionLamb FusedNovoGrad FusedSGD",
    ),
    "apex.transformer.enums": ("_transformer", "AttnMaskType AttnType LayerType ModelType"),
    "apex.transformer": ("_transformer", "AttnMaskType AttnType LayerType"),
    "apex.transformer.functional.fused_rope": ("_transformer", _ROPE),
    "apex.transformer.functional": ("_transformer", _ROPE),
    "apex.transformer.log_util": ("_transformer", "get_transformer_logger set_logging_level"),
    "apex.transformer.microbatches": (
        "_transformer",
        f"{_CALCULATOR} ConstantNumMicroBatches RampupBatchsizeNumMicroBatches "
        "get_transformer_logger",
    ),
    "apex.transformer.pipeline_parallel.utils": (
        "_transformer",
        f"{_CALCULATOR} _reconfigure_microbatch_calculator get_current_global_batch_size "
        "get_kth_microbatch get_micro_batch_size get_num_microbatches listify_model "
        "setup_microbatch_calculator unwrap_model update_num_microbatches",
    ),
}
