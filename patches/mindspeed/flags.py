"""Flags of MindSpeed's and MindSpeed-LLM's scripts that Megatron's parser does not know.

Names and numbers of values are from MindSpeed's master of July 2026 and its branch
26.1.0_core_r0.12.1, and from MindSpeed-LLM's master of that time (every ``add_argument``). A flag
without a row stays an unknown argument of Megatron's own parser.
"""

from __future__ import annotations

from typing import Final

from accel_bridge.patches.mindspeed._flag import ignored, refused
from accel_bridge.patches.mindspeed.mapped_flags import MAPPED

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

#: Every flag by its name.
FLAGS: Final = {flag.name: flag for flag in (*_IGNORED, *_REFUSED, *MAPPED)}
