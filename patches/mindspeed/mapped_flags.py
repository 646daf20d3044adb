"""Flags of MindSpeed's and MindSpeed-LLM's scripts in Megatron's parser: those that
become its arguments, those that change nothing here, and those that are refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

#: (Megatron's parsed arguments, the flag's values) -> what was set.
Translation = Callable[[argparse.Namespace, list[str]], str]


class Effect(str, Enum):
    """What a flag would do, and therefore how it is handled here."""

    #: Speed, memory or logging only: left out with a warning that names it.
    IGNORED = "ignored"
    #: Changes what is trained, or how the model is split: an error.
    REFUSED = "refused"
    #: A Megatron argument under another name, or several (:mod:`.translations`).
    MAPPED = "mapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag.

    :param name: as written, e.g. ``--use-mc2``.
    :param means: what it does, in words.
    :param values: how many values follow it: none, one, or at least one.
    :param harmless: values that change nothing, e.g. MindSpeed's own default.
    :param next: what to write instead of a refused flag.
    :param to: attribute of Megatron's arguments that a mapped flag sets: to its value, or True.
        None for a mapped flag: :data:`TRANSLATED` has its function.
    :param kind: what the value is converted to.
    """

    name: str
    effect: Effect
    means: str
    values: Literal[0, 1, "+"] = 0
    harmless: tuple[str, ...] = ()
    next: str = "remove it"
    to: str | None = None
    kind: type[str] | type[int] | type[float] = str


def ignored(means: str, names: str) -> tuple[Flag, ...]:
    """:param names: ``--name``, or ``--name=`` when a value follows, ``--name=+`` for several."""
    return tuple(_row(name, Effect.IGNORED, means) for name in names.split())


def refused(means: str, names: str, next: str = "remove it") -> tuple[Flag, ...]:
    """:param names: as above; ``--name=a,b`` takes one value; a and b are harmless."""
    return tuple(_row(name, Effect.REFUSED, means, next) for name in names.split())


def _row(name: str, effect: Effect, means: str, next: str = "remove it") -> Flag:
    flag, equals, rest = name.partition("=")
    return Flag(
        name=flag,
        effect=effect,
        means=means,
        values="+" if rest == "+" else 1 if equals else 0,
        harmless=tuple(rest.split(",")) if rest not in ("", "+") else (),
        next=next,
    )


_OVERLAP: Final = (
    "overlaps a GEMM with its own communication: one operator on an NPU, nothing elsewhere"
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
    ("--use-ascend-mc2", "comm_gemm_overlap", None, _OVERLAP),
    ("--use-mc2", "comm_gemm_overlap", None, _OVERLAP),
    ("--use-ascend-coc", "comm_gemm_overlap", None, _OVERLAP),
)

#: Flag -> its row, and what sets Megatron's arguments, in the order in which they are settled.
TRANSLATED: Final[dict[str, tuple[Flag, Translation]]] = {}


def translates(
    name: str,
    means: str,
    *,
    values: Literal[0, 1, "+"] = 0,
    harmless: tuple[str, ...] = (),
) -> Callable[[Translation], Translation]:
    """Declare what a function translates; see :class:`Flag`."""
    flag = Flag(name=name, effect=Effect.MAPPED, means=means, values=values, harmless=harmless)

    def declare(function: Translation) -> Translation:
        TRANSLATED[name] = flag, function
        return function

    return declare


_MAPPED: Final = (
    Flag(
        name=name,
        effect=Effect.MAPPED,
        means=means,
        values=1 if kind else 0,
        to=to,
        kind=kind or str,
    )
    for name, to, kind, means in _RENAMED
)


_IGNORED: Final = (
    *ignored(
        "requests a fused operator; here kernels are chosen automatically",
        "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb "
        "--use-fused-moe-token-permute-and-unpermute --use-fused-ring-attention-update "
        "--use-fusion-attn-v2 --gemm-gradient-accumulation-fusion --coc-fused-kernel --lora-fusion",
    ),
    *ignored(
        "overlaps communication with computation",
        "--coc-mode= --coc-parallel-num= "
        "--use-cp-send-recv-overlap --moe-permutation-async-comm --moe-allgather-overlap-comm "
        "--moe-alltoall-overlap-comm --moe-alltoall-mc2 --moe-bmm-mc2 --moe-fb-overlap "
        "--enable-overlap-ag-with-matmul --enable-overlap-matmul-with-rs "
        "--enable-backward-overlap-ag-with-matmul --use-pipe-experts --pipe-experts-multi-stream "
        "--pipe-experts-multi-data= --ampipe-degree= --ampipe-tp-sp-comm-overlap "
        "--async-log-allreduce --optimize-send-recv-comm --optimize-vpp-send-recv-comm "
        "--schedules-method= --dualpipev-dw-detach --reset-bucket-group-order "
        "--mla-up-proj-tp-overlap --disable-gloo-group --hccl-slice-size=",
    ),
    *ignored(
        "a way to communicate in context parallelism; the result is the same",
        "--context-parallel-algo= --ulysses-degree-in-cp= --cp-window-size= --megatron-cp-in-bnsd "
        "--context-parallel-cache-interval= --context-parallel-kv-cache-policy= "
        "--use-ulysses-allgather-kv --kv-head-repeat-before-uly-alltoall "
        "--adaptive-cp-only-reschedule --adaptive-cp-without-coarse",
    ),
    *ignored(
        "saves memory by recomputation or swapping",
        "--recompute-activation-function --recompute-activation-function-num-layers= "
        "--recompute-norm --recompute-norm-num-layers= --recompute-in-advance "
        "--recompute-in-bubble --enable-recompute-layers-per-pp-rank --recompute-mla-up-proj "
        "--swap-optimizer --swap-optimizer-times= "
        "--swap-layer-input --smart-swap --virtual-optimizer=+ --reuse-fp32-param "
        "--adaptive-memory-optimization --adaptive-recompute-device-size= "
        "--adaptive-recompute-device-swap --adaptive-recompute-profiling-step= "
        "--moe-zero-memory= --moe-zero-memory-num-layers= --moe-adaptive-recompute-activation "
        "--moe-adaptive-recompute-activation-scale= --moe-unperm2-mem-optim-swap "
        "--mla-zero-memory --mla-swap-core-attn-out --mla-mm-split --mla-fa-divide-qk "
        "--mla-fa-without-pad --mtp-mem-efficient-logits --attention-mask-on-cpu "
        "--loss-compute-mode= --loss-chunk-size= --param-and-grad-buffer-pad= "
        "--automated-pipeline --automated-pipeline-perf --save-memory-ratio= "
        "--recompute-module-list= --recompute-type=",
    ),
    *ignored(
        "balances experts between devices",
        "--balanced-moe-experts --balanced-moe-hot-expert-num= --trans-hot-expert-group-num= "
        "--enable-expert-placement --enable-fine-grained-expert-placement "
        "--expert-placement-freq= --fine-grained-expert-placement-thre= "
        "--enable-token-rearrange-opt --moe-dynamic-padding",
    ),
    *ignored(
        "a setting of CANN or HCCL, or of MindSpeed's own patches",
        "--jit-compile --hccl-group-buffer= --hccl-group-buffer-adaptive "
        "--hccl-ep-group-buffer-adaptive-factor= --hccl-op-mode= --aiqos --aiqos-enable-roce "
        "--aiqos-mode= --aiqos-schedule= --optimization-level= --no-shared-storage "
        "--enable-share-memory",
    ),
    *ignored(
        "profiling or logging",
        "--profile-level= --profile-with-cpu --profile-with-memory --profile-with-stack "
        "--profile-record-shapes --profile-save-path= --profile-export-type= "
        "--profile-data-simplification --op-cal-tflops --prof-file= --print-expert-load "
        "--npu-datadump",
    ),
    *ignored("names Megatron's only data format", "--data-impl= --dataset-impl="),
    *ignored(
        "another way to compute the same attention",
        "--use-fused-lightning-indexer --use-fused-lightning-indexer-loss "
        "--use-fused-lightning-indexer-kl-loss --use-fused-sparse-flash-attention "
        "--use-sparse-flash-attn --no-enable-linear-qkv --enable-mla-absorb --use-dsa-absorb "
        "--use-triton-gdn --mamba-chunk-size= --max-batch-size= --no-use-sparse-c8-indexer",
    ),
    *ignored(
        "how rows are padded; here they have the sequence's length, which changes no loss",
        "--no-pad-to-seq-lengths --variable-length --variable-seq-lengths --pad-to-multiple-of=",
    ),
    *ignored(
        "computes in float32 what Megatron computes in the model's precision",
        "--rmsnorm-weight-in-fp32 --init-norm-weight-in-fp32 --topk-softmax-in-fp32",
    ),
    *ignored(
        "for the conversion of weights or the tokenizing of data, not for training",
        "--model-type-hf= --hf-cfg-dir= --tokenizer-not-use-fast --workers= --prompt-type= "
        "--prompt-type-path= --enable-thinking= --tokenizer-padding-side= --pack",
    ),
    *ignored(
        "where gradients of frozen layers start; here that is the embedding",
        "--lora-register-forward-hook=+",
    ),
)

_REFUSED: Final = (
    *refused(
        "splits the model or its optimizer in a way that Megatron does not have",
        "--use-nd-matmul --nd1-dim1-size=1 --nd2-dim1-size=1 --tp-2d --tp-x=1 --tp-y=1 "
        "--unaligned-linear --pipeline-num-transformer-layers= --use-nanopipe "
        "--use-nanopipe-swap --layerzero "
        "--layerzero-config= --enable-zero3 --fsdp2-config-path= "
        "--use-multiparameter-pipeline-model-parallel --dist-train "
        "--enable-seq1f1b --seq1f1b-splits= --seq1f1b-balance-method= "
        "--layerwise-disaggregated-training",
        "use Megatron's --tensor-, --pipeline-, --context- or --expert-model-parallel-size",
    ),
    *refused(
        "changes the model",
        "--add-dense-bias --skip-bias-add --add-output-layer-bias "
        "--input-embeds-norm --post-norm --no-post-layer-norm "
        "--alibi-diagonal-opposite --alibi-fusion-attn-type= --fill-neg-inf --square-alibi-mask "
        "--attn-logit-softcapping= --output-logit-softcapping= --output-multiplier-scale= "
        "--embedding-multiplier-scale= --query-pre-attn-scalar= --scale-depth= --scale-emb= "
        "--dim-model-base= --geglu --gelu-tanh --swiglu-limit= --share-kvstates "
        "--cla-share-factor= --kv-compress --use-moba-attn --moba-chunk-size= --moba-topk= "
        "--moba-calc-method= --enable-mhc "
        "--enable-mla-scale-q-lora "
        "--enable-mla-scale-kv-lora --use-glm-rope --mtp-spec=+",
    ),
    *refused(
        "changes the attention mask",
        "--attention-mask-type=causal,general --cp-attention-mask-type=causal,general "
        "--adaptive-cp-dynamic-attn-mask --adaptive-cp-manually-set-mask-list ",
        "use Megatron's --reset-attention-mask for packed documents",
    ),
    *refused(
        "attention of the last positions only",
        "--sliding-window= --interleave-sliding-window= --sliding-window-size=",
        "use Megatron's --window-size W-1,0 (and --window-attn-skip-freq)",
    ),
    *refused(
        "a mixture of experts unlike Megatron's",
        "--moe-model-type=megatron_moe --moe-no-drop --moe-train-capacity-factor= "
        "--no-use-rts --noisy-gate-policy=None --moe-use-sinkhorn --num-zero-experts= "
        "--moe-revert-type-after-topk --fix-router "
        "--shared-expert-gate-output-dimension=1 --moe-comm-aux-loss-coeff= "
        "--moe-device-level-aux-loss-coeff= --use-global-aux-loss",
        "use Megatron's --moe-expert-capacity-factor, --moe-router-load-balancing-type and "
        "--moe-aux-loss-coeff",
    ),
    *refused("chooses the layers with experts", "--expert-interval=1", "use --moe-layer-freq"),
    *refused(
        "changes the rotary embedding's frequencies",
        "--yarn-scaling-factor= "
        "--rope-factor= --low-freq-factor= --high-freq-factor= --dynamic-factor= "
        "--long-factor= --short-factor= --long-mscale= --short-mscale= --longrope-freqs-type= "
        "--apply-rope-no-in-complex",
        "use Megatron's --rope-type yarn and --rotary-scaling-factor, or --use-rope-scaling",
    ),
    *refused(
        "another optimizer or average of weights",
        "--optimizer-selection=fused_adamw,fused_torch_adamw --use-ema --ema-decay= "
        "--compress-optimizer",
    ),
    *refused(
        "lossy compression or quantization",
        "--compress-activation= --compress-dense=disable --quant-states= --quant-grads "
        "--fp8-reuse-quantized-weight --te-comparison-with-bf16 --te-comparison-with-cpu "
        "--te-gmm-mode= --no-use-gmm-fp8 --qat-scheme= --qat-quant-block-size= --qad-enable "
        "--no-qad-enable --qad-teacher-load= --kl-loss-reduction= --kl-loss-weight= "
        "--kl-temperature= --indexer-qk-quant-scheme= --enable-a2avc=0",
    ),
    *refused(
        "deterministic operators",
        "--npu-deterministic --use-deter-comp",
        "use Megatron's --deterministic-mode (on an NPU with HCCL_DETERMINISTIC=true)",
    ),
    *refused("the size of linear attention", "--mamba-expand=1"),
    *refused(
        "DeepSeek 4's attention and residual streams, which Megatron 0.19 does not have",
        "--o-lora-rank= --o-groups= --hc-mult= --n-hash-layers= --compress-ratios=+ "
        "--compress-rope-theta= --original-seq-len= --use-fused-mhc --use-triton-mhc "
        "--index-share-for-mtp-iteration",
    ),
    *refused("another framework", "--ai-framework=pytorch"),
    *refused(
        "searches for a layout instead of training",
        "--auto-settings --auto-settings-log-level= --auto-settings-ranks= --auto-settings-type= "
        "--auto-settings-work-dir= --target-nnodes=",
    ),
    *refused(
        "recovery from faults by MindSpeed",
        "--ttp-enabled --enable-high-availability --enable-hbmfault-repair "
        "--enable-worker-reboot --enable-elastic-training --distributed-optimizer-no-replica",
        "use Megatron's --save-interval and restart",
    ),
    *refused(
        "fine-tuning, preference training or data of MindSpeed-LLM",
        "--stage=sft,pt --no-cut-token --is-pairwise-dataset "
        "--lora-modules-to-save=+ --dpo-beta= --dpo-loss-type= "
        "--ref-model= --full-shuffle-instruction-dataset --fix-sub-seq-length= "
        "--load-checkpoint-loosely --pad-vocab-size-to=",
        "use MindSpeed-LLM for it, or pretrain without these flags",
    ),
    *refused("another implementation, removed in 0.14", "--use-legacy-models", "remove it"),
)

#: Every flag but those of :data:`TRANSLATED`.
TABLE: Final = (*_IGNORED, *_REFUSED, *_MAPPED)
