"""Flags of MindSpeed's and MindSpeed-LLM's scripts that Megatron's parser does not know.

Names and numbers of values are from MindSpeed's master of July 2026 and its branch
26.1.0_core_r0.12.1, and from MindSpeed-LLM's master of that time (every ``add_argument``). A flag
without a row stays an unknown argument of Megatron's own parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


class Effect(str, Enum):
    """What a flag would do, and therefore how it is handled here."""

    #: Speed, memory or logging only: left out with a warning that names it.
    IGNORED = "ignored"
    #: Changes what is trained, or how the model is split: an error.
    REFUSED = "refused"
    #: A Megatron argument under another name.
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
    """

    name: str
    effect: Effect
    means: str
    values: Literal[0, 1, "+"] = 0
    harmless: tuple[str, ...] = ()
    next: str = "remove it"
    to: str | None = None


def _ignored(means: str, names: str) -> tuple[Flag, ...]:
    """:param names: ``--name``, or ``--name=`` when a value follows, ``--name=+`` for several."""
    return tuple(_row(name, Effect.IGNORED, means) for name in names.split())


def _refused(means: str, names: str, next: str = "remove it") -> tuple[Flag, ...]:
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


_IGNORED: Final = (
    *_ignored(
        "requests a fused operator; here kernels are chosen automatically",
        "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb "
        "--use-fused-moe-token-permute-and-unpermute --use-fused-ring-attention-update "
        "--use-fusion-attn-v2 --gemm-gradient-accumulation-fusion --coc-fused-kernel --lora-fusion",
    ),
    *_ignored(
        "overlaps communication with computation",
        "--use-ascend-mc2 --use-mc2 --use-ascend-coc --coc-mode= --coc-parallel-num= "
        "--use-cp-send-recv-overlap --moe-permutation-async-comm --moe-allgather-overlap-comm "
        "--moe-alltoall-overlap-comm --moe-alltoall-mc2 --moe-bmm-mc2 --moe-fb-overlap "
        "--enable-overlap-ag-with-matmul --enable-overlap-matmul-with-rs "
        "--enable-backward-overlap-ag-with-matmul --use-pipe-experts --pipe-experts-multi-stream "
        "--pipe-experts-multi-data= --ampipe-degree= --ampipe-tp-sp-comm-overlap "
        "--async-log-allreduce --optimize-send-recv-comm --optimize-vpp-send-recv-comm "
        "--reset-bucket-group-order --mla-up-proj-tp-overlap --disable-gloo-group "
        "--hccl-slice-size=",
    ),
    *_ignored(
        "a way to communicate in context parallelism; the result is the same",
        "--context-parallel-algo= --ulysses-degree-in-cp= --cp-window-size= --megatron-cp-in-bnsd "
        "--context-parallel-cache-interval= --context-parallel-kv-cache-policy= "
        "--use-ulysses-allgather-kv --kv-head-repeat-before-uly-alltoall "
        "--adaptive-cp-only-reschedule --adaptive-cp-without-coarse",
    ),
    *_ignored(
        "saves memory by recomputation or swapping",
        "--recompute-activation-function --recompute-activation-function-num-layers= "
        "--recompute-norm --recompute-norm-num-layers= --recompute-in-advance "
        "--recompute-in-bubble --enable-recompute-layers-per-pp-rank --recompute-mla-up-proj "
        "--swap-attention --swap-modules= --swap-optimizer --swap-optimizer-times= "
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
    *_ignored(
        "balances experts between devices",
        "--balanced-moe-experts --balanced-moe-hot-expert-num= --trans-hot-expert-group-num= "
        "--enable-expert-placement --enable-fine-grained-expert-placement "
        "--expert-placement-freq= --fine-grained-expert-placement-thre= "
        "--enable-token-rearrange-opt --moe-dynamic-padding",
    ),
    *_ignored(
        "a setting of CANN or HCCL, or of MindSpeed's own patches",
        "--jit-compile --hccl-group-buffer= --hccl-group-buffer-adaptive "
        "--hccl-ep-group-buffer-adaptive-factor= --hccl-op-mode= --aiqos --aiqos-enable-roce "
        "--aiqos-mode= --aiqos-schedule= --optimization-level= --no-shared-storage "
        "--enable-share-memory",
    ),
    *_ignored(
        "profiling or logging",
        "--profile-level= --profile-with-cpu --profile-with-memory --profile-with-stack "
        "--profile-record-shapes --profile-save-path= --profile-export-type= "
        "--profile-data-simplification --op-cal-tflops --prof-file= --print-expert-load "
        "--npu-datadump",
    ),
    *_ignored("names Megatron's only data format", "--data-impl= --dataset-impl="),
)

_REFUSED: Final = (
    *_refused(
        "splits the model or its optimizer in a way that Megatron does not have",
        "--use-nd-matmul --nd1-dim1-size=1 --nd2-dim1-size=1 --tp-2d --tp-x=1 --tp-y=1 "
        "--moe-tp-extend-ep --unaligned-linear --pipeline-num-transformer-layers= --use-nanopipe "
        "--use-nanopipe-swap --schedules-method= --dualpipev-dw-detach --layerzero "
        "--layerzero-config= --enable-zero3 --fsdp2-config-path= --num-layer-list= "
        "--use-multiparameter-pipeline-model-parallel --dist-train --variable-seq-lengths "
        "--enable-seq1f1b --seq1f1b-splits= --seq1f1b-balance-method= "
        "--layerwise-disaggregated-training",
        "use Megatron's --tensor-, --pipeline-, --context- or --expert-model-parallel-size",
    ),
    *_refused(
        "changes the model",
        "--noop-layers= --add-dense-bias --skip-bias-add --add-output-layer-bias "
        "--add-rmsnorm-offset --input-embeds-norm --post-norm --no-post-layer-norm "
        "--alibi-diagonal-opposite --alibi-fusion-attn-type= --fill-neg-inf --square-alibi-mask "
        "--attn-logit-softcapping= --output-logit-softcapping= --output-multiplier-scale= "
        "--embedding-multiplier-scale= --query-pre-attn-scalar= --scale-depth= --scale-emb= "
        "--dim-model-base= --geglu --gelu-tanh --swiglu-limit= --share-kvstates "
        "--cla-share-factor= --kv-compress --use-moba-attn --moba-chunk-size= --moba-topk= "
        "--moba-calc-method= --enable-mhc --enable-dsa-indexer --use-dsa-absorb "
        "--use-fused-lightning-indexer --use-fused-lightning-indexer-kl-loss "
        "--use-fused-sparse-flash-attention --use-sparse-flash-attn --index-topk= "
        "--index-n-heads= --index-head-dim= --no-enable-linear-qkv --enable-mla-scale-q-lora "
        "--enable-mla-scale-kv-lora --enable-mla-absorb --use-glm-rope --mtp-spec=+",
    ),
    *_refused(
        "changes the attention mask",
        "--attention-mask-type=causal --cp-attention-mask-type=causal "
        "--adaptive-cp-dynamic-attn-mask --adaptive-cp-manually-set-mask-list --neat-pack",
        "use Megatron's --reset-attention-mask for packed documents",
    ),
    *_refused(
        "attention of the last positions only",
        "--sliding-window= --interleave-sliding-window= --sliding-window-size=",
        "use Megatron's --window-size W-1,0 (and --window-attn-skip-freq)",
    ),
    *_refused(
        "a mixture of experts unlike Megatron's",
        "--moe-model-type=megatron_moe --moe-no-drop --moe-train-capacity-factor= "
        "--no-use-rts --noisy-gate-policy=None --moe-use-sinkhorn --num-zero-experts= "
        "--moe-revert-type-after-topk --fix-router --shared-expert-gate "
        "--shared-expert-gate-output-dimension= --moe-comm-aux-loss-coeff= "
        "--moe-device-level-aux-loss-coeff= --seq-aux --use-global-aux-loss",
        "use Megatron's --moe-expert-capacity-factor, --moe-router-load-balancing-type and "
        "--moe-aux-loss-coeff",
    ),
    *_refused("chooses the layers with experts", "--expert-interval=1", "use --moe-layer-freq"),
    *_refused(
        "chooses the layers with experts",
        "--first-k-dense-replace=0",
        "use --moe-layer-freq with a pattern such as [0]*1+[1]*27",
    ),
    *_refused(
        "size of the shared experts",
        "--n-shared-experts=",
        "use --moe-shared-expert-intermediate-size, N times the experts' size",
    ),
    *_refused("size of the experts", "--moe-intermediate-size=", "use --moe-ffn-hidden-size"),
    *_refused("groups of experts", "--n-group=", "use --moe-router-num-groups"),
    *_refused("groups of experts", "--topk-group=", "use --moe-router-group-topk"),
    *_refused(
        "scales the router's weights",
        "--routed-scaling-factor= --norm-topk-prob",
        "use --moe-router-topk-scaling-factor",
    ),
    *_refused(
        "changes the rotary embedding's frequencies",
        "--rope-scaling-type= --rope-scaling-beta-fast= --rope-scaling-beta-slow= "
        "--rope-scaling-mscale= --rope-scaling-mscale-all-dim= "
        "--rope-scaling-original-max-position-embeddings= --yarn-scaling-factor= --beta-fast= "
        "--beta-slow= --rope-factor= --low-freq-factor= --high-freq-factor= --dynamic-factor= "
        "--long-factor= --short-factor= --long-mscale= --short-mscale= --longrope-freqs-type= "
        "--original-max-position-embeddings= --apply-rope-no-in-complex",
        "use Megatron's --rope-type yarn and --rotary-scaling-factor, or --use-rope-scaling",
    ),
    *_refused("base of the rotary embedding", "--rope-theta=", "use --rotary-base"),
    *_refused("share of rotated dimensions", "--partial-rotary-factor=", "use --rotary-percent"),
    *_refused(
        "another optimizer or average of weights",
        "--optimizer-selection=fused_adamw,fused_torch_adamw --use-ema --ema-decay= "
        "--compress-optimizer --o2-gradient --o2-optimizer",
    ),
    *_refused(
        "lossy compression or quantization",
        "--compress-activation= --compress-dense=disable --quant-states= --quant-grads "
        "--fp8-reuse-quantized-weight --te-comparison-with-bf16 --te-comparison-with-cpu "
        "--te-gmm-mode= --no-use-gmm-fp8 --qat-scheme= --qat-quant-block-size= --qad-enable "
        "--no-qad-enable --qad-teacher-load= --kl-loss-reduction= --kl-loss-weight= "
        "--kl-temperature= --indexer-qk-quant-scheme= --enable-a2avc=0",
    ),
    *_refused(
        "deterministic operators",
        "--npu-deterministic --use-deter-comp",
        "use Megatron's --deterministic-mode (on an NPU with HCCL_DETERMINISTIC=true)",
    ),
    *_refused("another framework", "--ai-framework=pytorch"),
    *_refused(
        "searches for a layout instead of training",
        "--auto-settings --auto-settings-log-level= --auto-settings-ranks= --auto-settings-type= "
        "--auto-settings-work-dir= --target-nnodes=",
    ),
    *_refused(
        "recovery from faults by MindSpeed",
        "--ttp-enabled --enable-high-availability --enable-hbmfault-repair "
        "--enable-worker-reboot --enable-elastic-training --distributed-optimizer-no-replica",
        "use Megatron's --save-interval and restart",
    ),
    *_refused(
        "fine-tuning, preference training or data of MindSpeed-LLM",
        "--stage= --is-instruction-dataset --is-pairwise-dataset --prompt-type= "
        "--prompt-type-path= --padded-samples --pack --no-pad-to-seq-lengths --variable-length "
        "--lora-r= --lora-alpha= --lora-load= --lora-target-modules=+ --lora-modules-to-save=+ "
        "--lora-register-forward-hook=+ --lora-ckpt-filter --dpo-beta= --dpo-loss-type= "
        "--ref-model= --no-shuffle --full-shuffle-instruction-dataset --fix-sub-seq-length= "
        "--enable-thinking= --tokenizer-padding-side= --load-checkpoint-loosely "
        "--enable-hf2mg-convert --enable-mg2hf-convert --pad-vocab-size-to=",
        "use MindSpeed-LLM for it, or pretrain without these flags",
    ),
    *_refused("does not use the fast tokenizer", "--tokenizer-not-use-fast"),
    *_refused("another implementation, removed in 0.14", "--use-legacy-models", "remove it"),
)

_MAPPED: Final = (
    Flag(
        name="--multi-head-latent-attention",
        effect=Effect.MAPPED,
        means="multi-latent attention",
        to="multi_latent_attention",
    ),
    Flag(
        name="--qk-nope-head-dim",
        effect=Effect.MAPPED,
        means="head size without position",
        values=1,
        to="qk_head_dim",
    ),
    Flag(
        name="--qk-rope-head-dim",
        effect=Effect.MAPPED,
        means="head size with position",
        values=1,
        to="qk_pos_emb_head_dim",
    ),
    Flag(
        name="--tokenizer-name-or-path",
        effect=Effect.MAPPED,
        means="the tokenizer's files",
        values=1,
        to="tokenizer_model",
    ),
)

#: Every flag by its name.
FLAGS: Final = {flag.name: flag for flag in (*_IGNORED, *_REFUSED, *_MAPPED)}
