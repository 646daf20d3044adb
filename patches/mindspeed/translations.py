"""Flags of MindSpeed-LLM whose meaning depends on Megatron's other arguments.

Each function sets what Megatron needs for the same model and returns what it set. Semantics are
from MindSpeed-LLM's ``features_manager`` and ``core`` (master of November 2026).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Final, TypeVar

from accel_bridge.patches.mindspeed.mapped_flags import Translation, translates
from accel_bridge.patching.host import ArgumentError
from accel_bridge.process.parser import is_number

Namespace = argparse.Namespace
Value = TypeVar("Value")


def convert(flag: str, word: str, kind: Callable[[str], Value], example: object = 1) -> Value:
    """The value of ``flag``.

    :param example: a value to advise.
    :raises ArgumentError: ``word`` is none of ``kind``.
    """
    try:
        return kind(word)
    except ValueError:
        raise ArgumentError(
            f"{flag} takes a number.", evidence=f"{flag} {word}", next=f"{flag} {example}"
        ) from None


@translates(
    "--n-shared-experts",
    "size of the shared experts: `moe_shared_expert_intermediate_size`, N times the experts' size",
    values=1,
    harmless=("0",),
)
def shared_experts(args: Namespace, words: list[str]) -> str:
    """``--n-shared-experts N``: N times the experts' size, unless a size is given."""
    number = convert("--n-shared-experts", words[0], int)
    if getattr(args, "moe_shared_expert_intermediate_size", None) is not None:
        return "no effect beside --moe-shared-expert-intermediate-size"
    size = getattr(args, "moe_ffn_hidden_size", None) or args.ffn_hidden_size
    if not size:
        raise ArgumentError(
            "--n-shared-experts needs the experts' size.",
            evidence=f"--n-shared-experts {number} without --moe-ffn-hidden-size",
            next="add --moe-ffn-hidden-size",
        )
    args.moe_shared_expert_intermediate_size = number * size
    return f"moe_shared_expert_intermediate_size = {number * size}"


@translates(
    "--first-k-dense-replace",
    "chooses the layers with experts: `moe_layer_freq`, a pattern with K zeros first",
    values=1,
    harmless=("0", "-1"),
)
def first_dense(args: Namespace, words: list[str]) -> str:
    """``--first-k-dense-replace K``: the first K layers have no experts."""
    number = convert("--first-k-dense-replace", words[0], int)
    if not getattr(args, "num_experts", None):
        return "no effect without --num-experts"
    frequency = getattr(args, "moe_layer_freq", 1)
    if not isinstance(frequency, int):
        raise ArgumentError(
            "Two flags choose the layers with experts.",
            evidence=f"--first-k-dense-replace {number}, --moe-layer-freq {frequency}",
            next="leave one of them out",
        )
    layers = range(args.num_layers)
    args.moe_layer_freq = [int(i >= number and i % max(frequency, 1) == 0) for i in layers]
    return f"moe_layer_freq = {_pattern(args.moe_layer_freq)}"


def _pattern(frequency: list[int]) -> str:
    """[0, 1, 1] -> ``[0]*1+[1]*2``."""
    return "+".join(f"[{value}]*{len(list(run))}" for value, run in groupby(frequency))


@translates(
    "--norm-topk-prob",
    "normalizes the router's weights: a softmax over the chosen experts (`moe_router_pre_softmax`"
    " False)",
)
def normalized_top_k(args: Namespace, words: list[str]) -> str:
    """``--norm-topk-prob``: the chosen experts' weights have the sum 1.

    A softmax over the chosen logits is the normalized softmax over all; sigmoid scores are
    always normalized upstream.
    """
    if getattr(args, "moe_router_score_function", "softmax") != "softmax":
        return "as Megatron does: it normalizes these scores"
    args.moe_router_pre_softmax = False
    return "moe_router_pre_softmax = False: softmax over the chosen experts"


@translates(
    "--seq-aux",
    "the balancing loss of each sample: `moe_router_load_balancing_type` `seq_aux_loss`",
)
def sequence_loss(args: Namespace, words: list[str]) -> str:
    """``--seq-aux``: the balancing loss is computed for each sample."""
    args.moe_router_load_balancing_type = "seq_aux_loss"
    return "moe_router_load_balancing_type = seq_aux_loss"


@translates(
    "--rope-scaling-type",
    "changes the rotary embedding's frequencies: `rope_type` yarn, or rope for plm, with latent "
    "attention; `use_rope_scaling` for llama3; others are refused",
    values=1,
)
def rope_scaling(args: Namespace, words: list[str]) -> str:
    """``--rope-scaling-type``: yarn of multi-latent attention, or Llama 3's."""
    kind = words[0]
    if kind == "yarn" and getattr(args, "multi_latent_attention", False):
        args.rope_type = "yarn"
        # Upstream's --rope-scaling-factor is Llama 3's; the same word means yarn's there.
        args.rotary_scaling_factor = float(args.rope_scaling_factor)
        return f"rope_type = yarn, rotary_scaling_factor = {args.rotary_scaling_factor}"
    if kind == "plm" and getattr(args, "multi_latent_attention", False):
        # PLM's is the plain embedding; a factor of 1 leaves the softmax's scale alone.
        args.rope_type, args.rotary_scaling_factor = "rope", 1.0
        return "rope_type = rope"
    if kind == "llama3":
        args.use_rope_scaling = True
        return "use_rope_scaling = True"
    raise ArgumentError(
        f"--rope-scaling-type {kind} is not supported for this model.",
        evidence="Megatron has yarn for multi-latent attention, and Llama 3's scaling",
        next="remove it, or use Megatron's --position-embedding-type yarn",
    )


@translates(
    "--noop-layers",
    "layers that do nothing: fewer layers, and `pipeline_model_parallel_layout` with pipeline "
    "stages",
    values=1,
)
def empty_layers(args: Namespace, words: list[str]) -> str:
    """``--noop-layers I,J``: layers that do nothing, which even out pipeline stages.

    They are left out; with pipeline parallelism the layout keeps the other layers in place.
    """
    try:
        empty = {int(word) for word in words[0].split(",")}
    except ValueError:
        empty = {-1}
    if not empty <= set(range(args.num_layers)):
        raise ArgumentError(
            "--noop-layers takes layer numbers from 0.",
            evidence=f"--noop-layers {words[0]} with --num-layers {args.num_layers}",
            next=f"use numbers up to {args.num_layers - 1}, e.g. --noop-layers "
            f"{args.num_layers - 1}",
        )
    stages = _stages(args)
    if args.num_layers % stages:
        raise ArgumentError(
            "--noop-layers needs stages of equal size.",
            evidence=f"--num-layers {args.num_layers}, {stages} stages",
            next=f"make --num-layers a multiple of {stages}",
        )
    size = args.num_layers // stages
    counts = [len(set(range(i * size, (i + 1) * size)) - empty) for i in range(stages)]
    frequency = getattr(args, "moe_layer_freq", None)
    if isinstance(frequency, list):
        args.moe_layer_freq = [value for layer, value in enumerate(frequency) if layer not in empty]
    return _lay_out(args, counts, "--noop-layers")


@translates(
    "--num-layer-list",
    "layers of each pipeline stage: `pipeline_model_parallel_layout`",
    values=1,
)
def layer_list(args: Namespace, words: list[str]) -> str:
    """``--num-layer-list A,B``: the number of layers of each pipeline stage."""
    counts = [convert("--num-layer-list", word, int) for word in words[0].split(",")]
    stages = args.pipeline_model_parallel_size
    if len(counts) != stages or sum(counts) != args.num_layers or _stages(args) != stages:
        raise ArgumentError(
            "--num-layer-list does not fit the pipeline.",
            evidence=f"{words[0]} has {len(counts)} stages and {sum(counts)} layers; "
            f"--pipeline-model-parallel-size {stages}, --num-layers {args.num_layers}",
            next="give one number for each stage, without virtual stages",
        )
    return _lay_out(args, counts, "--num-layer-list")


def _stages(args: Namespace) -> int:
    """Pipeline stages, virtual ones included."""
    stages: int = args.pipeline_model_parallel_size
    per_stage = getattr(args, "num_layers_per_virtual_pipeline_stage", None)
    if per_stage:
        layers: int = args.num_layers
        return layers // int(per_stage)
    virtual = getattr(args, "num_virtual_stages_per_pipeline_rank", None)
    return stages * (int(virtual) if virtual else 1)


def _lay_out(args: Namespace, counts: list[int], flag: str) -> str:
    """Set the number of layers and, with several stages, where they are."""
    args.num_layers = sum(counts)
    if len(counts) == 1:
        return f"num_layers = {args.num_layers}"
    if not hasattr(args, "pipeline_model_parallel_layout"):
        raise ArgumentError(
            f"{flag} needs a Megatron that takes a pipeline layout.",
            evidence="this one has no --pipeline-model-parallel-layout (0.14 and later have)",
            next="use a later Megatron, or one pipeline stage",
        )
    stages = ["t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * int(getattr(args, "mtp_num_layers", None) or 0) + "L"
    args.pipeline_model_parallel_layout = "|".join(stages)
    args.num_layers_per_virtual_pipeline_stage = None
    if hasattr(args, "num_virtual_stages_per_pipeline_rank"):
        args.num_virtual_stages_per_pipeline_rank = None
    return (
        f"num_layers = {args.num_layers}, stages of {', '.join(map(str, counts))} layers "
        "(pipeline_model_parallel_layout)"
    )


@translates(
    "--enable-hf2mg-convert",
    "converts Hugging Face weights: nothing; refused where `--load` is a Hugging Face directory",
)
def convert_from_hub(args: Namespace, words: list[str]) -> str:
    """``--enable-hf2mg-convert``: MindSpeed-LLM converts Hugging Face's files while it loads."""
    directory = Path(args.load) if getattr(args, "load", None) else None
    if directory and (directory / "config.json").is_file():
        raise ArgumentError(
            "Megatron cannot load Hugging Face weights.",
            evidence=f"--load {directory} has a config.json; --enable-hf2mg-convert",
            next="convert the directory first, e.g. with Megatron-Bridge through "
            "`accel-bridge run -- python convert.py`, and give --load the result",
        )
    return "no effect: --load has no Hugging Face weights"


@translates(
    "--enable-mg2hf-convert",
    "saves Hugging Face weights as well: nothing: checkpoints are Megatron's alone",
)
def convert_to_hub(args: Namespace, words: list[str]) -> str:
    """``--enable-mg2hf-convert``: MindSpeed-LLM converts what it saves; here, a command does."""
    return (
        "checkpoints are Megatron's alone; convert one afterwards, e.g. with Megatron-Bridge "
        "through `accel-bridge run -- python convert.py`"
    )


@translates(
    "--o2-optimizer",
    "Adam's moments in bfloat16: `use_precision_aware_optimizer` with both moments in bf16",
)
def half_moments(args: Namespace, words: list[str]) -> str:
    """``--o2-optimizer``: Adam's moments are stored in bfloat16 and used in float32."""
    if not (getattr(args, "use_distributed_optimizer", False) and getattr(args, "bf16", False)):
        raise ArgumentError(
            "--o2-optimizer needs Megatron's distributed optimizer and bfloat16.",
            evidence=f"--bf16 {getattr(args, 'bf16', False)}, --use-distributed-optimizer "
            f"{getattr(args, 'use_distributed_optimizer', False)}",
            next="add --bf16 --use-distributed-optimizer, or remove --o2-optimizer",
        )
    args.use_precision_aware_optimizer = True
    args.exp_avg_dtype = args.exp_avg_sq_dtype = "bf16"
    return "use_precision_aware_optimizer = True, exp_avg_dtype = exp_avg_sq_dtype = bf16"


@translates("--o2-gradient", "gradients in bfloat16: `grad_reduce_in_bf16`")
def half_gradients(args: Namespace, words: list[str]) -> str:
    """``--o2-gradient``: gradients are summed and reduced in bfloat16."""
    args.grad_reduce_in_bf16 = True
    return "grad_reduce_in_bf16 = True"


@translates(
    "--fc-type",
    "the feed-forward part has a gate or not: no `swiglu`",
    values=1,
    harmless=("gate_up",),
)
def feed_forward(args: Namespace, words: list[str]) -> str:
    """``--fc-type up_down``: two matrices, no gate."""
    if words[0] != "up_down":
        raise ArgumentError(
            "--fc-type takes gate_up or up_down.", evidence=f"it is {words[0]}", next="remove it"
        )
    args.swiglu = False
    return "swiglu = False"


def _preprocess(handler: str, raw: str) -> str:
    """The command that makes the data of a handler, and what to give training then."""
    command = f"accel-bridge preprocess --handler-name {handler} --input {raw} --output-prefix data"
    if "Pretrain" in handler:
        return f"{command} with the same tokenizer, then --data-path data_text_document"
    return (
        f"{command} --prompt-type NAME --seq-length N with the same tokenizer, then "
        "--data-path data --is-instruction-dataset"
    )


@translates(
    "--handler-name",
    "tokenizes raw data: nothing; refused where `--data-path` names raw data",
    values=1,
)
def data_handler(args: Namespace, words: list[str]) -> str:
    """``--handler-name``: MindSpeed-LLM tokenizes raw data before it trains."""
    raw = [
        word
        for word in getattr(args, "data_path", None) or ()
        if Path(str(word)).suffix in (".json", ".jsonl", ".parquet", ".csv", ".txt")
    ]
    if raw:
        raise ArgumentError(
            "--data-path names raw data.",
            evidence=f"--data-path {raw[0]}, --handler-name {words[0]}",
            next=_preprocess(words[0], raw[0]),
        )
    return "no effect in training: --data-path is a prefix of tokenized data"


@translates(
    "--moe-tp-extend-ep",
    "spreads whole experts over the tensor-parallel ranks: `expert_tensor_parallel_size` 1 and a "
    "larger `expert_model_parallel_size`",
)
def shard_experts(args: Namespace, words: list[str]) -> str:
    """``--moe-tp-extend-ep``: tensor-parallel ranks hold whole experts, not shares of each."""
    ranks = args.expert_model_parallel_size * args.tensor_model_parallel_size
    args.expert_model_parallel_size = ranks
    args.expert_tensor_parallel_size = 1
    return f"expert_model_parallel_size = {ranks}, expert_tensor_parallel_size = 1"


@translates("--router-gating-in-fp32", "the router's precision: `moe_router_dtype` fp32")
def router_precision(args: Namespace, words: list[str]) -> str:
    """``--router-gating-in-fp32``: the router's GEMM is computed in float32."""
    args.moe_router_dtype = "fp32"
    return "moe_router_dtype = fp32"


@translates(
    "--enable-dsa-indexer",
    "sparse attention of DeepSeek 3.2: `experimental_attention_variant` dsa",
)
def sparse_attention(args: Namespace, words: list[str]) -> str:
    """``--enable-dsa-indexer``: each query sees the keys that an indexer chooses."""
    return _attention_variant(args, "--enable-dsa-indexer", "dsa")


@translates(
    "--full-attention-interval",
    "linear attention between layers with full attention: `experimental_attention_variant` "
    "gated_delta_net and `linear_attention_freq`",
    values=1,
)
def linear_attention(args: Namespace, words: list[str]) -> str:
    """``--full-attention-interval N``: every N-th layer has full attention, the others linear."""
    interval = convert("--full-attention-interval", words[0], int)
    line = _attention_variant(args, "--full-attention-interval", "gated_delta_net")
    args.linear_attention_freq = interval
    # Full attention of Qwen3-Next has a gate too.
    args.attention_output_gate = True
    return f"{line}, linear_attention_freq = {interval}, attention_output_gate = True"


def _attention_variant(args: Namespace, flag: str, variant: str) -> str:
    if not hasattr(args, "experimental_attention_variant"):
        raise ArgumentError(
            f"{flag} needs a Megatron with {variant}.",
            evidence="this one has no --experimental-attention-variant (0.16 and later have)",
            next="use a later Megatron",
        )
    args.experimental_attention_variant = variant
    return f"experimental_attention_variant = {variant}"


#: What ``--swap-modules`` may name of Megatron's layers -> Megatron's names of what is moved.
_SWAPPED: Final[dict[str, tuple[str, ...]]] = {
    "self_attention": ("qkv_linear", "core_attn", "attn_proj"),
    "input_layernorm": ("attn_norm",),
    "pre_mlp_layernorm": ("mlp_norm",),
}
#: Attribute of the parsed arguments: what :func:`offload` moves.
_OFFLOADED: Final = "_accel_bridge_offloaded"


@translates(
    "--swap-attention",
    "attention's activations wait on the host: `fine_grained_activation_offloading` with "
    "`offload_modules` qkv_linear, core_attn and attn_proj; no effect before Megatron 0.16",
)
def swap_attention(args: Namespace, words: list[str]) -> str:
    """``--swap-attention``: activations of attention wait on the host for their backward pass."""
    if getattr(args, "recompute_granularity", None) == "full":
        return "no effect beside --recompute-granularity full: these activations are not kept"
    if not hasattr(args, "fine_grained_activation_offloading"):
        return "no effect: Megatron moves activations to the host from 0.16 on; same losses"
    setattr(args, _OFFLOADED, list(_SWAPPED["self_attention"]))
    return f"fine_grained_activation_offloading of {', '.join(_SWAPPED['self_attention'])}"


@translates(
    "--swap-modules",
    "the activations of `--swap-attention`: `offload_modules` attn_norm for input_layernorm, "
    "mlp_norm for pre_mlp_layernorm",
    values=1,
)
def swap_modules(args: Namespace, words: list[str]) -> str:
    """``--swap-modules A,B``: whose activations; attention's if Megatron has none of these."""
    named = [moved for word in words[0].split(",") for moved in _SWAPPED.get(word, ())]
    if not hasattr(args, _OFFLOADED) or not named:
        return "no effect"
    setattr(args, _OFFLOADED, named)
    return f"offload_modules = {', '.join(named)}"


def offload(args: Namespace) -> None:
    """Ask Megatron to move what these flags name."""
    if moved := getattr(args, _OFFLOADED, None):
        args.fine_grained_activation_offloading = True
        args.offload_modules = moved


#: Attribute of Megatron's arguments that says how the data are read.
ASKED: Final = "accel_bridge_instruction"
FIELDS: Final = ("input_ids", "labels", "attention_mask")


def field(prefix: str, name: str) -> str:
    """Prefix of one of the data sets of ``--data-path`` PREFIX."""
    return f"{prefix}_packed_{name}_document"


def check(prefixes: list[str]) -> None:
    """:raises ArgumentError: ``--data-path`` names no instruction data."""
    for prefix in prefixes:
        missing = [name for name in FIELDS if not Path(field(prefix, name) + ".bin").is_file()]
        if missing:
            raise ArgumentError(
                "--data-path names no instruction data.",
                evidence=f"{field(prefix, missing[0])}.bin does not exist",
                next="give the prefix that MindSpeed-LLM's preprocess_data.py was given as "
                "--output-prefix, without _packed_input_ids_document",
            )


@translates(
    "--is-instruction-dataset",
    "data of MindSpeed-LLM for fine-tuning: a data set over MindSpeed-LLM's three files",
)
def instruction_data(args: Namespace, words: list[str]) -> str:
    """``--is-instruction-dataset``: rows are conversations, and prompts are not learned.

    With ``--reset-attention-mask``, rows hold several conversations that do not see one another.
    """
    packed = bool(getattr(args, "reset_attention_mask", False))
    if packed and not hasattr(args, "dataloader_inter_document_masking"):
        raise ArgumentError(
            "Packed conversations need a Megatron that masks between documents.",
            evidence="--reset-attention-mask with --is-instruction-dataset; this Megatron has no "
            "--dataloader-inter-document-masking (0.19 and later have)",
            next="use a later Megatron, or data that are not packed",
        )
    if not getattr(args, "mock_data", False):
        check([word for word in args.data_path or () if not is_number(word)])
    if packed:
        args.reset_attention_mask = args.reset_position_ids = False
        args.dataloader_inter_document_masking = True
    setattr(
        args,
        ASKED,
        {"packed": packed, "numbered": False, "in_order": False, "whole_batches": False},
    )
    return f"rows are {'packed ' if packed else ''}conversations of MindSpeed-LLM's data"


def _instruction_option(name: str, means: str) -> Translation:
    """A flag that refines ``--is-instruction-dataset``."""

    def option(args: Namespace, words: list[str]) -> str:
        asked = getattr(args, ASKED, None)
        if asked is None:
            raise ArgumentError(
                "A flag for instruction data stands alone.",
                evidence=f"{means}; --is-instruction-dataset is not given",
                next="add --is-instruction-dataset, or remove the flag",
            )
        asked[name] = True
        return means

    return option


translates(
    "--neat-pack",
    "packed conversations do not see one another: sequences distinguished by the numbers of the "
    "mask",
)(_instruction_option("numbered", "documents are distinguished by the mask's numbers"))
translates(
    "--padded-samples",
    "fills an epoch up to whole batches: epochs of whole batches",
)(_instruction_option("whole_batches", "an epoch is whole batches"))
translates(
    "--no-shuffle",
    "takes the data in their order: rows in their order",
)(_instruction_option("in_order", "rows are taken in their order"))
