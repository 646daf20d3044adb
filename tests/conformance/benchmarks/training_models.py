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
_NO_DROPOUT = "--attention-dropout 0 --hidden-dropout 0 "
_FORM = (
    "--bf16 --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --swiglu "
)
_MODERN = _FORM + _NO_DROPOUT
_UNTIED = "--untie-embeddings-and-output-weights "
_WORDS_OF_LLAMA = _UNTIED + "--vocab-size 128255 "
_WORDS_OF_QWEN = _UNTIED + "--vocab-size 151935 "
_LATENT = (
    "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
    "--v-head-dim 128 "
)
_OVERLAPPED = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
_FP8 = "--fp8-format hybrid --fp8-recipe "
#: A graph of a whole iteration has no place for a check on the host, and needs its generator.
_FULL_GRAPH = (
    "--cuda-graph-impl full_iteration --te-rng-tracker --no-check-for-nan-in-loss-and-grad"
)


def _sizes(layers: int, hidden: int, ffn: int, heads: int, groups: int = 0, head: int = 128) -> str:
    """Sizes of a model; query groups and the size of a head where there are groups."""
    words = f"--num-layers {layers} --hidden-size {hidden} --ffn-hidden-size {ffn} "
    words += f"--num-attention-heads {heads} "
    if groups:
        words += f"--group-query-attention --num-query-groups {groups} --kv-channels {head} "
    return words


def _batch(length: int, micro: int, size: int) -> str:
    """Tokens of a sequence, and sequences of a batch."""
    words = f"--seq-length {length} --max-position-embeddings {length} "
    return f"{words}--micro-batch-size {micro} --global-batch-size {size} "


def _experts(number: int, chosen: int, ffn: int = 0, loss: str = "0.01") -> str:
    """Routed experts; 0: as wide as a dense layer."""
    words = f"--num-experts {number} --moe-router-topk {chosen} --moe-aux-loss-coeff {loss} "
    words += f"--moe-ffn-hidden-size {ffn} " if ffn else ""
    words += "--moe-router-load-balancing-type aux_loss "
    return words + "--moe-token-dispatcher-type alltoall --moe-grouped-gemm "


_GPT = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 " + _batch(512, 4, 16)
_L4 = _sizes(4, 4096, 14336, 64) + _batch(4096, 1, 8)
_LLAMA_8B = _sizes(3, 4096, 14336, 32, 8) + _MODERN + _batch(8192, 1, 4) + _WORDS_OF_LLAMA
_LLAMA_8B_DEEP = _LLAMA_8B + "--num-layers 8 "
_LLAMA_70B = _sizes(2, 8192, 28672, 64, 8) + _MODERN + _batch(4096, 1, 6) + _WORDS_OF_LLAMA
_LONG = _sizes(2, 4096, 14336, 32, 8) + _MODERN + _UNTIED
_MLA_MOE = (
    _sizes(4, 2048, 8192, 16)
    + _LATENT
    + _MODERN
    + _batch(4096, 2, 8)
    + _experts(16, 4, 1408)
    + "--moe-shared-expert-intermediate-size 1408 "
    + _UNTIED
)
_MIXTRAL = (
    _sizes(2, 4096, 14336, 32, 8)
    + _MODERN
    + _batch(4096, 2, 8)
    + _experts(8, 2, loss="0.02")
    + _UNTIED
    + "--vocab-size 31999 "
)
_EXPERTS_64 = (
    _sizes(3, 2048, 8192, 16, 4)
    + "--qk-layernorm "
    + _MODERN
    + _batch(4096, 2, 8)
    + _experts(64, 6, 1024)
)
_DEEPSEEK_V3 = (
    _sizes(3, 2048, 8192, 16)
    + _LATENT
    + "--q-lora-rank 768 --qk-layernorm "
    + _MODERN
    + _batch(4096, 2, 8)
    + _experts(64, 8, 1024, "1e-4")
    + "--moe-shared-expert-intermediate-size 1024 --moe-router-num-groups 8 "
    "--moe-router-group-topk 4 --moe-router-score-function sigmoid "
    "--moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3 "
    "--moe-router-topk-scaling-factor 2.5 --moe-router-load-balancing-type seq_aux_loss "
    "--moe-layer-freq ([0]+[1]*2) --mtp-num-layers 1 " + _UNTIED
)
#: Squared ReLU, quick GEGLU: where the form has SwiGLU.
_NEMOTRON = (
    _sizes(4, 4096, 16384, 32, 8)
    + _MODERN.replace("--swiglu", "--squared-relu")
    + "--normalization LayerNorm --apply-layernorm-1p --rotary-percent 0.5 "
    + _batch(4096, 2, 8)
    + _UNTIED
)
_WIDE_HEADS = (
    _sizes(4, 3072, 12288, 16)
    + "--kv-channels 256 --apply-layernorm-1p "
    + _MODERN.replace("--swiglu", "--quick-geglu")
    + _batch(4096, 2, 8)
)
_GPT_OSS = (
    _sizes(2, 2880, 2880, 64, 8, 64)
    + _MODERN
    + _batch(4096, 2, 8)
    + _experts(32, 4, 2880)
    + "--softmax-type learnable --window-size 128,0 --window-attn-skip-freq 2 "
    + _UNTIED
)
#: Eight of Nemotron-H-8B's 52 layers: Mamba-2, attention, MLP; no position embedding.
_HYBRID = (
    "--hybrid-layer-pattern M-M-M*-M --hidden-size 4096 --ffn-hidden-size 21504 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 "
    "--mamba-num-heads 128 --mamba-head-dim 64 --mamba-num-groups 8 --mamba-state-dim 128 "
    + _MODERN.replace("--swiglu", "--squared-relu")
    + "--position-embedding-type none "
    + _batch(8192, 1, 4)
    + _UNTIED
    + "--vocab-size 131071 "
)
_DELTA = (
    _sizes(8, 2048, 6144, 16, 4)
    + "--qk-layernorm "
    + _MODERN
    + _batch(4096, 1, 8)
    + "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 "
)

#: Model -> Megatron's arguments.
MODELS: dict[str, str] = {
    "gpt-124m-512-fp16": _GPT + "--fp16 --initial-loss-scale 65536",
    "l4-h4096": _L4 + _MODERN,
    "l4-h4096-dropout": _L4 + _FORM,
    "l4-h4096-window-1024": _L4 + _MODERN + "--window-size (1023,0)",
    "l4-h4096-8-documents": _L4 + _MODERN + "--dataloader-inter-document-masking",
    "moe-8x2": _sizes(4, 2048, 5632, 32) + _MODERN + _batch(4096, 2, 16) + _experts(8, 2, 5632),
    "llama-8b": _LLAMA_8B,
    "llama-8b-32k": _LLAMA_8B + _batch(32768, 1, 2),
    "llama-70b": _LLAMA_70B,
    "qwen3": _sizes(8, 2048, 6144, 16, 8)
    + "--qk-layernorm "
    + _MODERN
    + _batch(4096, 2, 8)
    + _WORDS_OF_QWEN,
    "nemotron": _NEMOTRON,
    "wide-heads": _WIDE_HEADS,
    "moe-128x8": _sizes(3, 2048, 6144, 32, 4)
    + "--qk-layernorm "
    + _MODERN
    + _batch(4096, 2, 8)
    + _experts(128, 8, 768, "0.001")
    + _WORDS_OF_QWEN,
    "deepseek-v3": _DEEPSEEK_V3,
    "gpt-oss": _GPT_OSS,
    **{
        f"{name}-fp8-{recipe}": arguments + _FP8 + recipe
        for name, arguments in (("llama-70b", _LLAMA_70B), ("llama-8b", _LLAMA_8B))
        for recipe in ("tensorwise", "delayed", "blockwise")
    },
    "llama-8b-8-layers": _LLAMA_8B_DEEP,
    "llama-8b-8-layers-fp8-tensorwise": _LLAMA_8B_DEEP + _FP8 + "tensorwise",
    "llama-8b-8-layers-fp8-blockwise": _LLAMA_8B_DEEP + _FP8 + "blockwise",
    "llama-16k": _LONG + _batch(16384, 1, 2),
    "llama-32k": _LONG + _batch(32768, 1, 2),
    "mla-moe": _MLA_MOE,
    "mla-moe-fp8-tensorwise": _MLA_MOE + _FP8 + "tensorwise",
    "mla-moe-fp8-blockwise": _MLA_MOE + _FP8 + "blockwise",
    "mla-moe-router-fusion": _MLA_MOE + "--moe-router-fusion",
    "moe-64x6": _EXPERTS_64,
    "moe-64x6-fp8-tensorwise": _EXPERTS_64 + _FP8 + "tensorwise",
    "mixtral": _MIXTRAL,
    "mixtral-fp8-tensorwise": _MIXTRAL + _FP8 + "tensorwise",
    "gpt-1.3b": "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --bf16 "
    + _batch(2048, 4, 16),
    "delta-net": _DELTA,
    "hybrid": _HYBRID,
    "gpt-124m-512": _GPT + "--bf16 " + _NO_DROPOUT,
    "gpt-124m-512-local-graph": _GPT
    + "--bf16 "
    + _NO_DROPOUT
    + "--cuda-graph-impl local --te-rng-tracker",
    "gpt-124m-512-full-graph": _GPT + "--bf16 " + _NO_DROPOUT + _FULL_GRAPH,
    "mla-moe-ep2": _MLA_MOE + "--expert-model-parallel-size 2",
    "mla-moe-ep2-fp8-tensorwise": _MLA_MOE + _FP8 + "tensorwise --expert-model-parallel-size 2",
    "llama-8b-dp2": _LLAMA_8B + _OVERLAPPED + "--global-batch-size 8",
    "llama-8b-tp2-sp": _LLAMA_8B + "--tensor-model-parallel-size 2 --sequence-parallel "
    "--global-batch-size 8",
}
#: Models that need several GPUs.
GPUS = dict.fromkeys(
    ("mla-moe-ep2", "mla-moe-ep2-fp8-tensorwise", "llama-8b-dp2", "llama-8b-tp2-sp"), 2
)
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
    "before": "",
    "hopper": "",
    "triton": "",
    "te": f"{_FUSED_LOSS} --no-masked-softmax-fusion --attention-backend fused",
}
