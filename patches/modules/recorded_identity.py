"""Which of Megatron's arguments make two runs the same run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from accel_bridge.patches._factory import DISTRIBUTION
from accel_bridge.patches._installed import megatron_version

#: Section -> arguments that must be equal. Layout, implementation, paths, logging and saving may
#: differ; the fingerprints of weights and batches compare the content of paths.
ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "group_query_attention",
        "kv_channels",
        "seq_length",
        "max_position_embeddings",
        "position_embedding_type",
        "rotary_base",
        "rotary_percent",
        "rotary_interleaved",
        "use_rope_scaling",
        "normalization",
        "norm_epsilon",
        "apply_layernorm_1p",
        "qk_layernorm",
        "add_bias_linear",
        "add_qkv_bias",
        "swiglu",
        "squared_relu",
        "quick_geglu",
        "untie_embeddings_and_output_weights",
        "apply_query_key_layer_scaling",
        "window_size",
        "softmax_type",
        "multi_latent_attention",
        "mtp_num_layers",
        "num_experts",
        "moe_layer_freq",
        "moe_ffn_hidden_size",
        "moe_shared_expert_intermediate_size",
        "moe_router_topk",
        "moe_router_score_function",
        "moe_router_load_balancing_type",
        "moe_aux_loss_coeff",
        "moe_z_loss_coeff",
        "moe_expert_capacity_factor",
        "padded_vocab_size",
    ),
    "data": (
        "seed",
        "mock_data",
        "split",
        "dataloader_type",
        "reset_position_ids",
        "reset_attention_mask",
        "eod_mask_loss",
        "tokenizer_type",
    ),
    "training": (
        "train_iters",
        "global_batch_size",
        "optimizer",
        "lr",
        "min_lr",
        "lr_decay_style",
        "lr_decay_iters",
        "lr_warmup_iters",
        "lr_warmup_fraction",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_eps",
        "sgd_momentum",
        "clip_grad",
        "attention_dropout",
        "hidden_dropout",
        "calculate_per_token_loss",
    ),
}

#: What says in which precision GEMMs multiply where it is below the parameters'.
LOW: Final = ("fp8", "fp8_recipe", "fp4")

#: Name in the recording -> argument: sizes of the parallel dimensions.
LAYOUT: Final[Mapping[str, str]] = {
    "TP": "tensor_model_parallel_size",
    "SP": "sequence_parallel",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "CP": "context_parallel_size",
    "EP": "expert_model_parallel_size",
    "DP": "data_parallel_size",
}


def identity(args: Any, weights: int) -> dict[str, dict[str, Any]]:
    """What another run must share with this one.

    :param args: Megatron's validated arguments.
    :param weights: fingerprint of the weights before the first step.
    """
    sections = {
        section: {name: getattr(args, name) for name in names if hasattr(args, name)}
        for section, names in ARGUMENTS.items()
    }
    # Only where they are on: earlier recordings have no such lines.
    if getattr(args, "fp8", None) or getattr(args, "fp4", None):
        sections["training"].update({name: getattr(args, name, None) for name in LOW})
    sections["versions"] = {DISTRIBUTION: megatron_version()}
    sections["weights"] = {"fingerprint before the first step": f"{weights:016x}"}
    return sections


def layout(args: Any) -> dict[str, int]:
    """Sizes of the parallel dimensions; sequence parallelism counts as the tensor dimension's."""
    sizes = {name: int(getattr(args, argument) or 1) for name, argument in LAYOUT.items()}
    if args.sequence_parallel:
        sizes["SP"] = args.tensor_model_parallel_size
    return sizes


def precision(args: Any) -> str:
    """dtype of the parameters."""
    return str(args.params_dtype).removeprefix("torch.")


def plain_arguments(args: Any) -> dict[str, Any]:
    """All arguments, in a form that JSON can hold."""
    plain = (str, int, float, bool, type(None))
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in sorted(vars(args).items())
    }
