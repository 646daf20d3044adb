"""Flags of MindSpeed's and MindSpeed-LLM's scripts that become Megatron's arguments."""

from __future__ import annotations

from typing import Final, Literal

from accel_bridge.patches.mindspeed._flag import Effect, Flag

_OVERLAP: Final = (
    "overlaps a product with its own communication: one operator on an NPU, nothing elsewhere"
)
#: Flag, attribute of Megatron's arguments, what its value is, what it means.
_RENAMED: Final[tuple[tuple[str, str, type[str] | type[int] | type[float] | None, str], ...]] = (
    ("--multi-head-latent-attention", "multi_latent_attention", None, "multi-latent attention"),
    ("--qk-nope-head-dim", "qk_head_dim", int, "head size without position"),
    ("--qk-rope-head-dim", "qk_pos_emb_head_dim", int, "head size with position"),
    ("--tokenizer-name-or-path", "tokenizer_model", str, "the tokenizer's files"),
    ("--moe-intermediate-size", "moe_ffn_hidden_size", int, "size of the experts"),
    ("--n-group", "moe_router_num_groups", int, "groups of experts"),
    ("--topk-group", "moe_router_group_topk", int, "groups of experts"),
    ("--routed-scaling-factor", "moe_router_topk_scaling_factor", float, "scales the router"),
    ("--rope-theta", "rotary_base", float, "base of the rotary embedding"),
    ("--partial-rotary-factor", "rotary_percent", float, "share of rotated dimensions"),
    ("--rope-scaling-mscale", "mscale", float, "yarn"),
    ("--rope-scaling-mscale-all-dim", "mscale_all_dim", float, "yarn"),
    (
        "--rope-scaling-original-max-position-embeddings",
        "original_max_position_embeddings",
        int,
        "yarn",
    ),
    ("--original-max-position-embeddings", "original_max_position_embeddings", int, "yarn"),
    ("--beta-fast", "beta_fast", float, "yarn"),
    ("--beta-slow", "beta_slow", float, "yarn"),
    ("--rope-scaling-beta-fast", "beta_fast", float, "yarn"),
    ("--rope-scaling-beta-slow", "beta_slow", float, "yarn"),
    ("--index-n-heads", "dsa_indexer_n_heads", int, "sparse attention of DeepSeek 3.2"),
    ("--index-head-dim", "dsa_indexer_head_dim", int, "sparse attention of DeepSeek 3.2"),
    ("--index-topk", "dsa_indexer_topk", int, "sparse attention of DeepSeek 3.2"),
    ("--index-topk-freq", "dsa_indexer_topk_freq", int, "sparse attention of DeepSeek 3.2"),
    (
        "--index-skip-topk-offset",
        "dsa_indexer_skip_topk_offset",
        int,
        "sparse attention of DeepSeek 3.2",
    ),
    ("--indexer-loss-coeff", "dsa_indexer_loss_coeff", float, "sparse attention of DeepSeek 3.2"),
    ("--shared-expert-gate", "moe_shared_expert_gate", None, "a gate on the shared expert"),
    ("--mamba-d-conv", "linear_conv_kernel_dim", int, "the convolution of linear attention"),
    ("--add-rmsnorm-offset", "apply_layernorm_1p", None, "norms scale by 1 + weight"),
    # Read by script_flags.py, where the device is known.
    ("--use-ascend-mc2", "fused_products", None, _OVERLAP),
    ("--use-mc2", "fused_products", None, _OVERLAP),
    ("--use-ascend-coc", "fused_products", None, _OVERLAP),
)

#: Flag, number of values, harmless values, meaning, what it becomes; see translations.py.
_TRANSLATED: Final[tuple[tuple[str, Literal[0, 1, "+"], tuple[str, ...], str, str], ...]] = (
    (
        "--n-shared-experts",
        1,
        ("0",),
        "size of the shared experts",
        "`moe_shared_expert_intermediate_size`, N times the experts' size",
    ),
    (
        "--first-k-dense-replace",
        1,
        ("0", "-1"),
        "chooses the layers with experts",
        "`moe_layer_freq`, a pattern with K zeros first",
    ),
    (
        "--seq-aux",
        0,
        (),
        "the balancing loss of each sample",
        "`moe_router_load_balancing_type` `seq_aux_loss`",
    ),
    (
        "--norm-topk-prob",
        0,
        (),
        "normalizes the router's weights",
        "a softmax over the chosen experts (`moe_router_pre_softmax` False)",
    ),
    (
        "--rope-scaling-type",
        1,
        (),
        "changes the rotary embedding's frequencies",
        "`rope_type` yarn, or rope for plm, with latent attention; `use_rope_scaling` for llama3; "
        "others are refused",
    ),
    (
        "--noop-layers",
        1,
        (),
        "layers that do nothing",
        "fewer layers, and `pipeline_model_parallel_layout` with pipeline stages",
    ),
    (
        "--moe-tp-extend-ep",
        0,
        (),
        "spreads whole experts over the tensor-parallel ranks",
        "`expert_tensor_parallel_size` 1 and a larger `expert_model_parallel_size`",
    ),
    (
        "--num-layer-list",
        1,
        (),
        "layers of each pipeline stage",
        "`pipeline_model_parallel_layout`",
    ),
    (
        "--enable-hf2mg-convert",
        0,
        (),
        "converts Hugging Face weights",
        "nothing; refused where `--load` is a Hugging Face directory",
    ),
    (
        "--enable-mg2hf-convert",
        0,
        (),
        "saves Hugging Face weights as well",
        "nothing: checkpoints are Megatron's alone",
    ),
    (
        "--o2-optimizer",
        0,
        (),
        "Adam's moments in bfloat16",
        "`use_precision_aware_optimizer` with both moments in bf16",
    ),
    ("--o2-gradient", 0, (), "gradients in bfloat16", "`grad_reduce_in_bf16`"),
    ("--fc-type", 1, ("gate_up",), "the feed-forward part has a gate or not", "no `swiglu`"),
    (
        "--handler-name",
        1,
        (),
        "tokenizes raw data",
        "nothing; refused where `--data-path` names raw data",
    ),
    ("--router-gating-in-fp32", 0, (), "the router's precision", "`moe_router_dtype` fp32"),
    (
        "--is-instruction-dataset",
        0,
        (),
        "data of MindSpeed-LLM for fine-tuning",
        "a data set over MindSpeed-LLM's three files",
    ),
    (
        "--neat-pack",
        0,
        (),
        "packed conversations do not see one another",
        "documents told apart by the numbers of the mask",
    ),
    ("--padded-samples", 0, (), "fills an epoch up to whole batches", "epochs of whole batches"),
    ("--no-shuffle", 0, (), "takes the data in their order", "rows in their order"),
    (
        "--lora-r",
        1,
        (),
        "low-rank adapters",
        "the adapters' rank (16)",
    ),
    (
        "--lora-alpha",
        1,
        (),
        "low-rank adapters",
        "their scale, alpha / rank (32)",
    ),
    (
        "--lora-target-modules",
        "+",
        (),
        "low-rank adapters",
        "adapters on the linear layers of these names; nothing else is trained",
    ),
    ("--lora-load", 1, (), "low-rank adapters", "adapters loaded after the model of `--load`"),
    ("--lora-ckpt-filter", 0, (), "low-rank adapters", "checkpoints that hold the adapters alone"),
    (
        "--enable-dsa-indexer",
        0,
        (),
        "sparse attention of DeepSeek 3.2",
        "`experimental_attention_variant` dsa",
    ),
    (
        "--full-attention-interval",
        1,
        (),
        "linear attention between layers with full attention",
        "`experimental_attention_variant` gated_delta_net and `linear_attention_freq`",
    ),
)

#: The rows of both tables.
MAPPED: Final = (
    *(
        Flag(
            name=name,
            effect=Effect.MAPPED,
            means=means,
            values=1 if kind else 0,
            to=to,
            kind=kind or str,
        )
        for name, to, kind, means in _RENAMED
    ),
    *(
        Flag(
            name=name,
            effect=Effect.MAPPED,
            means=means,
            values=values,
            harmless=harmless,
            becomes=becomes,
        )
        for name, values, harmless, means, becomes in _TRANSLATED
    ),
)
