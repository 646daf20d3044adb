"""What is measured: models, and ways to train them, as arguments of Megatron."""

from __future__ import annotations

#: Iterations of a run, and how many of them come before the measurement.
ITERATIONS = 26
WARMUP = 8
#: Patch without which no pip-installed Megatron starts.
ONLY_MAKE = "dataset-helpers"

COMMON = (
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 50256 --seed 42 --lr 1e-4 "
    "--min-lr 1e-5 --lr-decay-style cosine --clip-grad 1.0 --log-interval 1 --log-throughput "
    "--eval-iters 0 --eval-interval 100000 --distributed-backend nccl "
    "--no-create-attention-mask-in-dataloader --num-workers 2 "
    f"--train-iters {ITERATIONS} --lr-decay-iters {ITERATIONS} "
)
_GPT = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --micro-batch-size 4 "
_LLAMA = (
    "--num-layers 4 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 64 "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 1 "
    "--global-batch-size 8 "
)
_NO_DROPOUT = "--attention-dropout 0 --hidden-dropout 0 "
_MOE = (
    "--num-layers 4 --hidden-size 2048 --ffn-hidden-size 5632 --moe-ffn-hidden-size 5632 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--micro-batch-size 2 --global-batch-size 16 --num-experts 8 --moe-router-topk 2 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
)

_LLAMA_8B = (
    "--num-layers 3 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 8192 "
    "--max-position-embeddings 8192 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 1 "
    "--global-batch-size 4 --untie-embeddings-and-output-weights --vocab-size 128255 "
)
_QWEN3 = (
    "--num-layers 8 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 16 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --untie-embeddings-and-output-weights --vocab-size 151935 "
)
_MLA_MOE = (
    "--num-layers 4 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 "
    "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 128 --seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--micro-batch-size 2 --global-batch-size 8 --num-experts 16 --moe-router-topk 4 "
    "--moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 1408 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--untie-embeddings-and-output-weights "
)

_LONG = (
    "--num-layers 2 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --bf16 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--micro-batch-size 1 --untie-embeddings-and-output-weights "
)
_EXPERTS_64 = (
    "--num-layers 3 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 "
    "--group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1024 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
)
_GPT_1B = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
    "--max-position-embeddings 2048 --bf16 --micro-batch-size 4 --global-batch-size 16 "
)
_DELTA = (
    "--num-layers 8 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 16 "
    "--group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 1 "
    "--global-batch-size 8 --experimental-attention-variant gated_delta_net "
    "--linear-attention-freq 4 "
)
_LLAMA_70B = (
    "--num-layers 2 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 1 "
    "--global-batch-size 6 --untie-embeddings-and-output-weights --vocab-size 128255 "
)
_NEMOTRON = (
    "--num-layers 4 --hidden-size 4096 --ffn-hidden-size 16384 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --squared-relu --normalization LayerNorm "
    "--apply-layernorm-1p --position-embedding-type rope --rotary-percent 0.5 "
    "--disable-bias-linear --micro-batch-size 2 --global-batch-size 8 "
    "--untie-embeddings-and-output-weights "
)
_WIDE_HEADS = (
    "--num-layers 4 --hidden-size 3072 --ffn-hidden-size 12288 --num-attention-heads 16 "
    "--kv-channels 256 --seq-length 4096 --max-position-embeddings 4096 --bf16 --quick-geglu "
    "--normalization RMSNorm --apply-layernorm-1p --position-embedding-type rope "
    "--disable-bias-linear --micro-batch-size 2 --global-batch-size 8 "
)
_EXPERTS_128 = (
    "--num-layers 3 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm "
    "--seq-length 4096 --max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.001 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--untie-embeddings-and-output-weights --vocab-size 151935 "
)
_DEEPSEEK_V3 = (
    "--num-layers 3 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 "
    "--multi-latent-attention --q-lora-rank 768 --kv-lora-rank 512 --qk-head-dim 128 "
    "--qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1024 "
    "--moe-shared-expert-intermediate-size 1024 --moe-router-num-groups 8 "
    "--moe-router-group-topk 4 --moe-router-score-function sigmoid "
    "--moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3 "
    "--moe-router-topk-scaling-factor 2.5 --moe-router-load-balancing-type seq_aux_loss "
    "--moe-aux-loss-coeff 1e-4 --moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--moe-layer-freq ([0]+[1]*2) --mtp-num-layers 1 --untie-embeddings-and-output-weights "
)
_GPT_OSS = (
    "--num-layers 2 --hidden-size 2880 --ffn-hidden-size 2880 --num-attention-heads 64 "
    "--group-query-attention --num-query-groups 8 --kv-channels 64 --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --softmax-type learnable --window-size 128,0 "
    "--window-attn-skip-freq 2 --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 2880 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.01 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--untie-embeddings-and-output-weights "
)
_MIXTRAL = (
    "--num-layers 2 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --kv-channels 128 --seq-length 4096 "
    "--max-position-embeddings 4096 --bf16 --swiglu --normalization RMSNorm "
    "--position-embedding-type rope --disable-bias-linear --micro-batch-size 2 "
    "--global-batch-size 8 --num-experts 8 --moe-router-topk 2 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.02 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "
    "--untie-embeddings-and-output-weights --vocab-size 31999 "
)
_LLAMA_8B_DEEP = _LLAMA_8B + _NO_DROPOUT + "--num-layers 8 "
_FP8 = "--fp8-format hybrid --fp8-recipe "
_SMALL = _GPT + "--seq-length 512 --max-position-embeddings 512 --bf16 --global-batch-size 16 "
#: A graph of a whole iteration has no place for a check on the host, and needs its generator.
_FULL_GRAPH = (
    "--cuda-graph-impl full_iteration --te-rng-tracker --no-check-for-nan-in-loss-and-grad"
)

_OVERLAPPED = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
_LAYOUTS = {
    "dp2": _OVERLAPPED,
    "dp4": _OVERLAPPED,
    "tp2-sp": "--tensor-model-parallel-size 2 --sequence-parallel ",
    "tp4-sp": "--tensor-model-parallel-size 4 --sequence-parallel ",
    "tp2-dp2": "--tensor-model-parallel-size 2 --sequence-parallel " + _OVERLAPPED,
    "pp4": "--pipeline-model-parallel-size 4 ",
    "ep4": "--expert-model-parallel-size 4 ",
}
#: (model, layout, GPUs). The batch of the dense model grows with the GPUs: weak scaling.
_SPREAD = (
    ("llama-8b", "dp2", 2),
    ("llama-8b", "tp2-sp", 2),
    ("llama-8b", "dp4", 4),
    ("llama-8b", "tp4-sp", 4),
    ("llama-8b", "tp2-dp2", 4),
    ("llama-8b", "pp4", 4),
    ("mla-moe", "ep4", 4),
    ("mla-moe", "tp4-sp", 4),
    ("mla-moe", "tp2-dp2", 4),
    ("mla-moe", "pp4", 4),
)


def _spread(model: str, layout: str) -> str:
    """A model in a layout of several GPUs."""
    number = {name: gpus for one, name, gpus in _SPREAD if one == model}[layout]
    arguments = {"llama-8b": _LLAMA_8B, "mla-moe": _MLA_MOE}[model] + _NO_DROPOUT
    arguments += _LAYOUTS[layout]
    if model == "llama-8b" and layout == "pp4":
        # Three layers make no four stages: with its loss, an output layer of 128,256 words takes
        # the time of two or three layers.
        arguments += "--num-layers 10 --account-for-embedding-in-pipeline-split "
        return arguments + "--account-for-loss-in-pipeline-split --global-batch-size 8"
    samples = 4 * number if model == "llama-8b" else 8 * number if layout == "ep4" else 16
    return arguments + f"--global-batch-size {samples}"


#: Model -> Megatron's arguments.
MODELS: dict[str, str] = {
    "gpt-124m-512-fp16": _GPT + "--seq-length 512 --max-position-embeddings 512 --fp16 "
    "--global-batch-size 16 --initial-loss-scale 65536",
    "gpt-124m-4096-bf16": _GPT + "--seq-length 4096 --max-position-embeddings 4096 --bf16 "
    "--global-batch-size 16",
    "l4-h4096": _LLAMA + _NO_DROPOUT,
    "l4-h4096-dropout": _LLAMA,
    "l4-h4096-window-1024": _LLAMA + _NO_DROPOUT + "--window-size (1023,0)",
    "l4-h4096-8-documents": _LLAMA + _NO_DROPOUT + "--dataloader-inter-document-masking",
    "moe-8x2": _MOE + _NO_DROPOUT,
    "llama-8b": _LLAMA_8B + _NO_DROPOUT,
    "llama-8b-32k": _LLAMA_8B + _NO_DROPOUT + "--seq-length 32768 "
    "--max-position-embeddings 32768 --global-batch-size 2",
    "llama-70b": _LLAMA_70B + _NO_DROPOUT,
    "qwen3": _QWEN3 + _NO_DROPOUT,
    "nemotron": _NEMOTRON + _NO_DROPOUT,
    "wide-heads": _WIDE_HEADS + _NO_DROPOUT,
    "moe-128x8": _EXPERTS_128 + _NO_DROPOUT,
    "deepseek-v3": _DEEPSEEK_V3 + _NO_DROPOUT,
    "gpt-oss": _GPT_OSS + _NO_DROPOUT,
    "llama-70b-fp8-tensorwise": _LLAMA_70B + _NO_DROPOUT + _FP8 + "tensorwise",
    "llama-70b-fp8-delayed": _LLAMA_70B + _NO_DROPOUT + _FP8 + "delayed",
    "llama-70b-fp8-blockwise": _LLAMA_70B + _NO_DROPOUT + _FP8 + "blockwise",
    "llama-8b-fp8-tensorwise": _LLAMA_8B + _NO_DROPOUT + _FP8 + "tensorwise",
    "llama-8b-fp8-delayed": _LLAMA_8B + _NO_DROPOUT + _FP8 + "delayed",
    "llama-8b-fp8-blockwise": _LLAMA_8B + _NO_DROPOUT + _FP8 + "blockwise",
    "llama-8b-8-layers": _LLAMA_8B_DEEP,
    "llama-8b-8-layers-fp8-tensorwise": _LLAMA_8B_DEEP + _FP8 + "tensorwise",
    "llama-8b-8-layers-fp8-blockwise": _LLAMA_8B_DEEP + _FP8 + "blockwise",
    "llama-16k": _LONG + _NO_DROPOUT + "--seq-length 16384 --max-position-embeddings 16384 "
    "--global-batch-size 2",
    "llama-32k": _LONG + _NO_DROPOUT + "--seq-length 32768 --max-position-embeddings 32768 "
    "--global-batch-size 2",
    "mla-moe": _MLA_MOE + _NO_DROPOUT,
    "mla-moe-fp8-tensorwise": _MLA_MOE + _NO_DROPOUT + _FP8 + "tensorwise",
    "mla-moe-fp8-delayed": _MLA_MOE + _NO_DROPOUT + _FP8 + "delayed",
    "mla-moe-fp8-blockwise": _MLA_MOE + _NO_DROPOUT + _FP8 + "blockwise",
    "mla-moe-router-fusion": _MLA_MOE + _NO_DROPOUT + "--moe-router-fusion",
    "mla-moe-shared-overlap": _MLA_MOE + _NO_DROPOUT + "--moe-shared-expert-overlap",
    "moe-64x6": _EXPERTS_64 + _NO_DROPOUT,
    "moe-64x6-fp8-tensorwise": _EXPERTS_64 + _NO_DROPOUT + _FP8 + "tensorwise",
    "mixtral": _MIXTRAL + _NO_DROPOUT,
    "mixtral-fp8-tensorwise": _MIXTRAL + _NO_DROPOUT + _FP8 + "tensorwise",
    "moe-8x2-fp8-tensorwise": _MOE + _NO_DROPOUT + _FP8 + "tensorwise",
    "gpt-1.3b": _GPT_1B,
    "gpt-1.3b-no-dropout": _GPT_1B + _NO_DROPOUT,
    "delta-net": _DELTA + _NO_DROPOUT,
    "gpt-124m-512": _SMALL + _NO_DROPOUT,
    "gpt-124m-512-local-graph": _SMALL + _NO_DROPOUT + "--cuda-graph-impl local --te-rng-tracker",
    "gpt-124m-512-full-graph": _SMALL + _NO_DROPOUT + _FULL_GRAPH,
    "mla-moe-ep2": _MLA_MOE + _NO_DROPOUT + "--expert-model-parallel-size 2",
    "mla-moe-ep2-fp8-tensorwise": _MLA_MOE + _NO_DROPOUT + _FP8 + "tensorwise "
    "--expert-model-parallel-size 2",
    **{f"{name}-{layout}": _spread(name, layout) for name, layout, _ in _SPREAD},
    "tp2": _LLAMA + _NO_DROPOUT + "--tensor-model-parallel-size 2",
    "tp2-sp": _LLAMA + _NO_DROPOUT + "--tensor-model-parallel-size 2 --sequence-parallel",
    "pp2": _LLAMA + _NO_DROPOUT + "--pipeline-model-parallel-size 2",
    "dp2": _LLAMA + _NO_DROPOUT + "--use-distributed-optimizer --overlap-grad-reduce "
    "--overlap-param-gather",
    "cp2": _LLAMA + _NO_DROPOUT + "--context-parallel-size 2",
}
#: Models that need several GPUs.
GPUS = dict.fromkeys(
    ("mla-moe-ep2", "mla-moe-ep2-fp8-tensorwise", "tp2", "tp2-sp", "pp2", "dp2", "cp2"), 2
)
GPUS |= {f"{name}-{layout}": number for name, layout, number in _SPREAD}
#: Models that the host limits, whose steps are short and uneven: times as many iterations.
MORE_ITERATIONS = {
    "gpt-124m-512-fp16": 3,
    "gpt-124m-512": 3,
    "gpt-124m-512-local-graph": 4,
    "gpt-124m-512-full-graph": 4,
    "mla-moe": 2,
    "moe-64x6": 2,
    "delta-net": 0.5,
}
#: Tokens of each document of mock data, where a model packs documents.
DOCUMENT = {"l4-h4096-8-documents": 512}
#: Megatron's fused kernels for experts, which are not its defaults.
FUSED_EXPERTS = "--moe-permute-fusion --moe-router-fusion"
_FUSED_LOSS = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl native"
#: What each way adds to the arguments.
WAYS = {
    "local": "--transformer-impl local --no-gradient-accumulation-fusion --no-persist-layer-norm "
    "--no-masked-softmax-fusion --no-rope-fusion",
    "bridge": "",
    "logits": "",
    "beside": "",
    "te": f"{_FUSED_LOSS} --no-masked-softmax-fusion --attention-backend fused",
}
