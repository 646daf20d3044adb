"""Random models, trainings and layouts for `random_training.py`, as Megatron's own flags.

A model and a training say what is computed; how it is computed (a layout, recomputation, an
overlap, another implementation) must not change it. One mixture has some of each.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import hybrids

COMMON: Final = """
--hidden-size 64 --seq-length 64 --max-position-embeddings 64 --ffn-hidden-size 96
--micro-batch-size 2 --global-batch-size 8 --tokenizer-type NullTokenizer --vocab-size 8191
--attention-dropout 0 --hidden-dropout 0 --mock-data --seed 42 --init-method-std 0.1
--log-interval 1 --eval-iters 0 --eval-interval 1000 --distributed-backend nccl --num-workers 0
--ckpt-format torch_dist
""".split()

LATENT: Final = (
    "--multi-latent-attention --kv-lora-rank 32 --qk-head-dim 16 --qk-pos-emb-head-dim 16 "
    "--v-head-dim 16"
)
EXPERTS: Final = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 64"

#: Each line of choices gives one; `-` is none of them, written as often as it should be likely.
MODEL: Final[Sequence[Sequence[str]]] = (
    ("--num-layers 4",),
    ("-", "--normalization RMSNorm", "--normalization RMSNorm --apply-layernorm-1p",
     "--apply-layernorm-1p", "--normalization RMSNorm --norm-epsilon 1e-3"),
    ("-", "--swiglu", "--swiglu", "--squared-relu --no-bias-gelu-fusion", "--quick-geglu",
     "--openai-gelu",
     "--swiglu",
     "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 1.0 "
     "--no-bias-swiglu-fusion --no-bias-gelu-fusion"),
    ("-", "--disable-bias-linear", "--disable-bias-linear", "--disable-bias-linear --add-qkv-bias"),
    ("-", "--untie-embeddings-and-output-weights"),
    ("-", "-", "--apply-residual-connection-post-layernorm"),
    ("-", "-", "--embedding-init-method-std 1.0", "--no-scaled-init",
     "--make-vocab-size-divisible-by 96", "--output-logit-dtype fp32",
     "--use-mup --mup-base-hidden-size 32 --mup-embedding-mult 2.0 --mup-base-head-dim 8",
     "--use-mup --mup-base-hidden-size 16 --mup-attn-scale-power 0.5 --mup-output-mult 0.7"),
    ("-", "-", "-", "-", "--mtp-num-layers 1", "--mtp-num-layers 2",
     "--mtp-num-layers 1 --mtp-loss-scaling-factor 0.3", "--mtp-num-layers 1 --mtp-detach-heads",
     "--mtp-num-layers 2 --mtp-use-repeated-layer"),
)  # fmt: skip
ATTENTION: Final[Sequence[Sequence[str]]] = (
    ("--num-attention-heads 4",),
    ("-", "--group-query-attention --num-query-groups 2"),
    ("-", "--position-embedding-type rope", "--position-embedding-type none",
     "--position-embedding-type rope --rotary-percent 0.5",
     "--position-embedding-type rope --rotary-interleaved",
     "--position-embedding-type rope --rotary-base 500000 --use-rope-scaling",
     "--position-embedding-type rope --use-rope-scaling --rope-scaling-factor 4.0",
     "--position-embedding-type rope --rotary-seq-len-interpolation-factor 2",
     "--position-embedding-type rope --no-rope-freq 2",
     "--position-embedding-type yarn --yarn-rotary-scaling-factor 4.0 "
     "--yarn-original-max-position-embeddings 32"),
    ("-", "-", "--kv-channels 32", "--kv-channels 8"),
    ("-", "-", "--qk-layernorm", "--qk-l2-norm"),
    ("-", "-", "--window-size 16,0", "--window-size 16,0 --window-attn-skip-freq 2"),
    ("-", "-", "--softmax-type off-by-one", "--softmax-type learnable"),
    ("-", "-", "--attention-output-gate", "--attention-softmax-in-fp32",
     "--apply-query-key-layer-scaling"),
)  # fmt: skip
LATENT_ATTENTION: Final[Sequence[Sequence[str]]] = (
    ("--num-attention-heads 4",),
    (LATENT, LATENT,
     "--multi-latent-attention --kv-lora-rank 24 --qk-head-dim 16 --qk-pos-emb-head-dim 8 "
     "--v-head-dim 12"),
    ("-", "--q-lora-rank 32"),
    ("-", "--qk-layernorm"),
    ("-", "--rope-type rope", "--rope-type yarn --rotary-scaling-factor 4",
     "--rope-type yarn --rotary-scaling-factor 4 --mscale 0.7 --mscale-all-dim 0.7"),
    ("-", "--position-embedding-type rope"),
    ("-", "-", "--attention-softmax-in-fp32"),
)  # fmt: skip
ROUTED: Final[Sequence[Sequence[str]]] = (
    (EXPERTS,),
    ("--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2",
     "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-2",
     "--moe-router-load-balancing-type none",
     "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 1e-2",
     "--moe-router-load-balancing-type seq_aux_loss aux_loss --moe-aux-loss-coeff 1e-2 3e-2",
     "--moe-router-load-balancing-type quantile_balancing",
     "--moe-router-load-balancing-type quantile_balancing --moe-router-quantile-balancing-ema 0.5"),
    ("-", "-", "--moe-shared-expert-intermediate-size 64",
     "--moe-shared-expert-intermediate-size 64 --moe-shared-expert-gate"),
    ("-", "--moe-router-pre-softmax", "--moe-router-score-function sigmoid",
     "--moe-router-score-function sigmoid --moe-router-enable-expert-bias",
     "--moe-router-score-function sqrtsoftplus",
     "--moe-router-score-function sqrtsoftplus --moe-router-enable-expert-bias "
     "--moe-router-bias-update-rate 1e-1",
     "--moe-router-pre-softmax --moe-router-topk-scaling-factor 2.5",
     "--moe-router-num-groups 2 --moe-router-group-topk 1"),
    ("-", "-", "--moe-z-loss-coeff 1e-3", "--moe-router-dtype fp64"),
    ("-", "-", "--moe-layer-freq [0,1,1,1]", "--moe-layer-freq 2"),
    ("-", "-", "-", "--swiglu --no-bias-swiglu-fusion --activation-func-clamp-value 0.5",
     "--swiglu --moe-mlp-glu-interleave-size 8 --moe-grouped-gemm"),
    ("-", "-", "--moe-latent-size 32", "--moe-apply-probs-on-input --moe-router-topk 1"),
)  # fmt: skip
#: Dropped tokens depend on which tokens a rank has, so these go with one process only.
DROPPING: Final = (
    "--moe-expert-capacity-factor 1.0",
    "--moe-router-load-balancing-type sinkhorn",
    "--moe-expert-capacity-factor 0.8 --moe-pad-expert-input-to-capacity",
    "--moe-expert-capacity-factor 1.2 --moe-token-drop-policy position",
)
TRAINING: Final[Sequence[Sequence[str]]] = (
    ("--lr 3e-3 --min-lr 1e-4",),
    ("--lr-decay-style cosine --lr-decay-iters 10", "--lr-decay-style constant",
     "--lr-decay-style linear --lr-decay-iters 9 --lr-warmup-iters 2",
     "--lr-decay-style inverse-square-root --lr-warmup-iters 2 --lr-decay-iters 10",
     "--lr-decay-style WSD --lr-decay-iters 8 --lr-wsd-decay-iters 4"),
    ("-", "-", "--weight-decay 0.1", "--weight-decay 0.5 --adam-beta2 0.95 --adam-eps 1e-6",
     "--start-weight-decay 0 --end-weight-decay 0.2 --weight-decay-incr-style linear",
     "--apply-wd-to-qk-layernorm"),
    ("-", "-", "-", "--optimizer sgd --sgd-momentum 0.9", "--optimizer sgd",
     "--optimizer sgd --sgd-momentum 0"),
    ("-", "--clip-grad 0", "--clip-grad 0.1"),
    ("-", "-", "--calculate-per-token-loss"),
    ("-", "-", "-", "--eod-mask-loss", "--reset-position-ids --reset-attention-mask",
     "--no-create-attention-mask-in-dataloader", "--create-attention-mask-in-dataloader"),
    ("-", "-", "-", "--rampup-batch-size 4 4 16", "--micro-batch-size 1", "--micro-batch-size 4"),
    ("-", "-", "--decoupled-lr 1e-3 --decoupled-min-lr 1e-4"),
)  # fmt: skip
#: What must change nothing in float32.
NEUTRAL: Final[Sequence[str]] = (
    "--transformer-impl local", "--transformer-impl local",
    "--attention-backend unfused", "--attention-backend flash", "--attention-backend fused",
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 1",
    "--recompute-granularity selective",
    "--recompute-granularity selective --recompute-modules layernorm",
    "--recompute-granularity selective --recompute-modules mlp core_attn",
    "--recompute-granularity selective --recompute-modules moe_act layernorm",
    "--recompute-granularity selective --recompute-modules moe",
    "--recompute-granularity selective --recompute-modules shared_experts",
    "--recompute-granularity selective --recompute-modules mla_up_proj",
    "--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion",
    "--no-bias-dropout-fusion", "--no-rope-fusion", "--no-gradient-accumulation-fusion",
    "--no-persist-layer-norm", "--cross-entropy-loss-fusion",
    "--cross-entropy-loss-fusion --cross-entropy-fusion-impl native",
    "--use-distributed-optimizer", "--use-distributed-optimizer --overlap-grad-reduce",
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    "--use-distributed-optimizer --use-precision-aware-optimizer",
    "--overlap-grad-reduce", "--overlap-grad-reduce --ddp-bucket-size 5000",
    "--ddp-num-buckets 3 --overlap-grad-reduce", "--ddp-average-in-collective",
    "--gradient-reduce-div-fusion", "--ddp-pad-buckets-for-high-nccl-busbw",
    "--accumulate-allreduce-grads-in-fp32", "--manual-gc --manual-gc-interval 2",
    "--empty-unused-memory-level 2", "--log-params-norm", "--log-num-zeros-in-grad",
    "--log-throughput --log-progress", "--timing-log-level 2",
    "--tensorboard-dir board --log-timers-to-tensorboard --log-memory-to-tensorboard "
    "--tensorboard-log-interval 1 --log-validation-ppl-to-tensorboard",
    "--check-for-nan-in-loss-and-grad", "--check-for-spiky-loss", "--check-for-large-grads",
    "--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-distributed-optimizer "
    "--use-precision-aware-optimizer",
    "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --use-distributed-optimizer "
    "--use-precision-aware-optimizer --overlap-cpu-optimizer-d2h-h2d",
    "--fine-grained-activation-offloading --offload-modules attn_norm core_attn",
    "--fine-grained-activation-offloading --offload-modules expert_fc1 moe_act",
    "--deterministic-mode", "--disable-jit-fuser", "--use-cpu-initialization",
    "--clone-scatter-output-in-embedding", "--use-tp-pp-dp-mapping",
    "--no-async-tensor-model-parallel-allreduce",
    "--delay-wgrad-compute", "--num-dataset-builder-threads 2", "--exit-signal-handler",
    "--rerun-mode validate_results",
    "--error-injection-rate 0", "--straggler-minmax-count 1 --log-straggler",
    "--barrier-with-L1-time", "--no-barrier-with-level-1-timing",
    "--use-fused-weighted-squared-relu", "--fused-residual-rmsnorm", "--profile",
    "--num-workers 2",
    "--moe-permute-fusion", "--moe-router-fusion", "--moe-grouped-gemm",
    "--moe-grouped-gemm --moe-permute-fusion", "--moe-token-dispatcher-type alltoall",
    "--moe-token-dispatcher-type allgather",
    "--moe-shared-expert-overlap --moe-token-dispatcher-type alltoall",
    "--moe-token-dispatcher-type flex --moe-enable-deepep", "--moe-per-layer-logging",
    "--moe-layer-recompute", "--moe-use-legacy-grouped-gemm --moe-grouped-gemm",
    "--moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm",
    "--moe-hybridep-num-sms 4",
    "--torch-nn-attention", "--use-te-activation-func", "--use-transformer-engine-op-fuser",
    "--recompute-activations", "--log-max-attention-logit", "--disable-gloo-process-groups",
    "--use-distributed-optimizer --ddp-reduce-scatter-with-fp32-accumulation",
    "--no-align-grad-reduce", "--te-rng-tracker", "--inference-rng-tracker",
    "--eval-iters 2 --eval-interval 2",
    "--init-model-with-meta-device", "--check-weight-hash-across-dp-replicas-interval 2",
    "--use-grouped-gemm-for-dense-mlp", "--use-grouped-gemm-for-shared-expert",
    "--mla-down-proj-fusion",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
)  # fmt: skip

PRECISIONS: Final = (
    *("", "", "", "", "--bf16", "--bf16 --fp32-residual-connection"),
    *("--bf16 --accumulate-allreduce-grads-in-fp32", "--fp16 --initial-loss-scale 1024"),
    "--bf16 --grad-reduce-in-bf16",
    *("--bf16 --fp8-format hybrid --fp8-recipe tensorwise", "--bf16 --fp8-format e4m3"),
)
#: How checkpoints are written and read; for runs that resume.
SAVING: Final = (
    "-", "-", "--async-save",
    "--no-ckpt-fully-parallel-save",
    "--ckpt-fully-parallel-load", "--ckpt-assume-constant-structure",
    "--dist-ckpt-strictness log_all", "--dist-ckpt-optim-fully-reshardable",
    "--non-persistent-save-interval 1 --non-persistent-ckpt-type global",
    "--dist-ckpt-save-pre-mcore-014", "--use-dist-ckpt",
    "--async-strategy mcore --async-save", "--verify-integrity",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How many processes, and how; ``experts``: only for models that have some."""

    processes: int
    flags: str
    experts: bool = False

    @property
    def splits_tokens(self) -> bool:
        """Whether a rank sees only a part of a step's tokens."""
        sizes = re.findall(r"--(?:tensor|pipeline)-model-parallel-size (\d+)", self.flags)
        return "sequence" in self.flags or math.prod(map(int, sizes)) < self.processes


_SP: Final = "--tensor-model-parallel-size 2 --sequence-parallel"
_PP2: Final = "--pipeline-model-parallel-size 2"
_CP2: Final = "--context-parallel-size 2"
LAYOUTS: Final[Sequence[Layout]] = (
    Layout(1, ""), Layout(1, ""),
    Layout(2, "--tensor-model-parallel-size 2"), Layout(2, _SP), Layout(2, _SP),
    Layout(2, _PP2), Layout(2, f"{_PP2} --num-layers-per-virtual-pipeline-stage 1"),
    Layout(2, f"{_PP2} --num-virtual-stages-per-pipeline-rank 2"),
    Layout(2, f"{_PP2} --num-layers-per-virtual-pipeline-stage 1 "
              "--microbatch-group-size-per-virtual-pipeline-stage 4"),
    Layout(2, f"{_PP2} --decoder-first-pipeline-num-layers 1"),
    Layout(2, f"{_PP2} --decoder-last-pipeline-num-layers 1 --defer-embedding-wgrad-compute"),
    Layout(2, f"{_PP2} --num-layers-per-virtual-pipeline-stage 1 "
              "--overlap-p2p-communication-warmup-flush"),
    Layout(2, "--tensor-parallel-num-weight-shards 2"),
    Layout(2, f"{_PP2} --pipeline-model-parallel-layout Ettt|tL"),
    Layout(2, f"{_PP2} --pipeline-model-parallel-layout Et|t|tt|L"),
    Layout(2, f"{_CP2}"), Layout(2, f"{_CP2} --cp-comm-type a2a"),
    Layout(2, f"{_CP2} --cp-comm-type all_gather"), Layout(2, f"{_CP2} --cp-comm-type p2p"),
    Layout(2, ""), Layout(2, "--use-distributed-optimizer"),
    Layout(2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    Layout(2, "--use-torch-fsdp2 --no-gradient-accumulation-fusion"),
    Layout(2, "--expert-model-parallel-size 2", True),
    Layout(2, "--expert-tensor-parallel-num-weight-shards 2 --moe-grouped-gemm", True),
    Layout(2, "--expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall", True),
    Layout(2, f"{_SP} --expert-model-parallel-size 2 --expert-tensor-parallel-size 1", True),
    Layout(2, f"{_SP} --expert-tensor-parallel-size 2", True),
    Layout(4, f"{_SP} {_PP2} --num-layers-per-virtual-pipeline-stage 1"),
    Layout(4, "--use-distributed-optimizer --num-distributed-optimizer-instances 2"),
    Layout(4, "--context-parallel-size 4 --hierarchical-context-parallel-sizes 2 2 "
              "--cp-comm-type a2a+p2p"),
    Layout(4, f"--tensor-model-parallel-size 2 {_PP2} --distribute-saved-activations "
              "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"),
    Layout(4, f"{_SP} {_CP2}"), Layout(4, f"{_CP2} --use-distributed-optimizer"),
    Layout(4, f"{_SP} --expert-model-parallel-size 2 --expert-tensor-parallel-size 2", True),
    Layout(4, f"{_PP2} --expert-model-parallel-size 2", True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a mixture."""

    layout: Layout
    neutral: tuple[str, ...]
    #: How a checkpoint on the way is written, where the run is resumed from one; None where not.
    saving: str | None

    def words(self) -> list[str]:
        """As arguments."""
        return " ".join((self.layout.flags, *self.neutral)).split()

    def __str__(self) -> str:
        text = " ".join((f"[{self.layout.processes}]", self.layout.flags, *self.neutral))
        return text if self.saving is None else f"{text} RESUME {self.saving}"


@dataclass(frozen=True, slots=True)
class Mixture:
    """A model and its training, with some ways to compute it."""

    seed: int
    what: tuple[str, ...]
    precision: str
    variants: tuple[Variant, ...]

    def words(self) -> list[str]:
        """What all its runs have in common."""
        made = hybrids.DOCUMENTS not in self.what
        common = [word for word in COMMON if made or word != "--mock-data"]
        return [*common, *" ".join((*self.what, self.precision)).split()]


def draw(
    seed: int, known: Mapping[str, Collection[str]], variants: int = 3, hybrid: bool = False
) -> Mixture:
    """The mixture of this seed, of flags that this Megatron knows.

    :param known: flag -> the values that it takes; none: any.
    :param hybrid: layers of state-space models among the others.
    """
    source = random.Random(seed)

    def can(text: str) -> bool:
        words = text.split()
        return all(
            word in known and (not known[word] or value in known[word])
            for word, value in zip(words, [*words[1:], ""], strict=False)
            if word.startswith("--")
        )

    def one_of(choices: Sequence[str]) -> str:
        word = source.choice([text for text in choices if text == "-" or can(text)] or ["-"])
        return "" if word == "-" else word

    # Of a hybrid model's layers, latent attention is one since 0.19, as this flag is.
    may_be_latent = not hybrid or can("--mamba-training-ssm-states-dtype")
    latent, routed = source.random() < 0.25 and may_be_latent, source.random() < 0.45
    tables = [*MODEL, *(LATENT_ATTENTION if latent else ATTENTION), *(ROUTED if routed else ())]
    what = [one_of(choices) for choices in [*tables, *TRAINING]]
    alone = routed and source.random() < 0.1
    if alone:
        what.append(one_of(DROPPING))
    what = [text for text in what if text and (routed or "--moe" not in text)]
    if hybrid:
        what = [text for text in what if "--mtp" not in text and "--moe-layer-freq" not in text]
        words = hybrids.words_of(source, can, routed, latent)
        if "--swiglu" in " ".join(words):
            what = [text for text in what if text not in MODEL[2]]
        bias = routed and "--disable-bias-linear" not in " ".join(what)
        what += [*["--disable-bias-linear"] * bias, *words]
    text, saved = " ".join(what), 0.3
    if "--moe-shared-expert" in text and "--disable-bias" not in text:
        what.append("--disable-bias-linear")
    if "--mtp" in text and "--position-embedding-type" not in text:
        what.append("--position-embedding-type rope")
    # Fused, there is one kind of GELU, and the quick one for experts only.
    one_kind = "gelu" in text or ("geglu" in text and not routed)
    if one_kind and "--no-bias-gelu" not in text:
        what.append("--no-bias-gelu-fusion")
    if "--mtp" in text and "--untie" not in text:
        what.append("--untie-embeddings-and-output-weights")
    layouts = [
        layout
        for layout in LAYOUTS
        if can(layout.flags) and (routed or not layout.experts)
        if layout.processes == 1 or not alone
    ]
    neutral = [text for text in NEUTRAL if can(text)]

    def without(*words: str) -> list[Layout]:
        return [one for one in layouts if not any(word in one.flags for word in words)]

    if hybrid:
        # A projection is saved by its parts, which a part of it has not.
        layouts = without("virtual", "-layout", "decoder-first", "fsdp2")
        layouts = without("tensor") if "--mamba-num-groups 1" in text else layouts
        neutral += [more for more in hybrids.NEUTRAL if can(more)]
    banned = [] if routed else ["moe"]
    banned += [] if latent else ["mla"]
    if hybrids.DOCUMENTS in text:
        banned += ["mem-eff", "deterministic"]
        # Megatron's scripts give stages between the first and the last no documents.
        layouts = [one for one in layouts if "pipeline" not in one.flags]
    if "--moe-router-dtype fp64" in text:
        banned.append("router-fusion")
    if "--optimizer sgd" in text:
        banned, saved = [*banned, "distributed"], 0.0
        # Transformer Engine's asks its first parameter for the device: a stage without experts
        # has none of theirs.
        layouts = without("distributed", *["pipeline"] * routed)
    if "--softmax-type" in text:
        # Transformer Engine has no attention for these in another kind of context parallelism.
        layouts = [
            one for one in layouts if "context" not in one.flags or one.flags.endswith(" a2a")
        ]
    if "--mtp" in text or "--eod" in text:
        # Each context-parallel rank divides by its own tokens, of which one has more.
        layouts = without("context")
    if routed and not hybrid and can("--transformer-impl local"):
        # Its names of norms before experts are not those of Transformer Engine's checkpoints.
        banned.append("--transformer-impl")
        what += ["--transformer-impl local"] * (source.random() < 0.2)
    if latent and "--qk-layernorm" in text:
        # Transformer Engine's checkpoints hold these norms in the projection after them.
        banned.append("--transformer-impl")
    if routed:
        # Megatron trains experts with tensor parallelism only where sequences are parallel too.
        layouts = [one for one in layouts if "tensor" not in one.flags or "sequence" in one.flags]
    if "--untie" not in " ".join(what):
        layouts = without("fsdp2")
    if "glu" in text or "--mtp" in text:
        # Megatron's checkpoints mix a gate's rows with the others' where shards become more or
        # fewer, silently; 0.19's backward of an embedding that is used twice ends.
        layouts = without("weight-shards")
    depths = re.search(r"--mtp-num-layers (\d)", text)
    if depths:
        last = "m" * int(depths[1]) + "L"
        layouts = [replace(one, flags=re.sub("L$", last, one.flags)) for one in layouts]
    if "--calculate-per-token-loss" in text:
        banned.append("average")
        # Megatron's wrapper of torch's FSDP never divides by the tokens.
        layouts = without("fsdp2")
    neutral = [text for text in neutral if not any(word in text for word in banned)]
    found = []
    for _ in range(variants):
        saving = one_of(SAVING) if source.random() < saved else None
        more = tuple(source.sample(neutral, min(len(neutral), source.choice((0, 1, 2, 3, 4)))))
        layout = source.choice(layouts)
        if hybrid and "--hybrid-layer-pattern" in text:
            stages = hybrids.stages(source, text.split()[-1], layout.flags)
            layout = replace(layout, flags=layout.flags + stages)
        found.append(Variant(layout, more, saving))
    precision = source.choice([text for text in PRECISIONS if can(text)])
    if "--transformer-impl local" not in what:
        # Transformer Engine's projections take no residual that is wider than they are.
        precision = precision.replace(" --fp32-residual-connection", "")
    if "--fp8" in precision:
        what = hybrids.for_fp8(what)
    if "--calculate-per-token-loss" in text:
        # Sums of all tokens' gradients, times the scale, are too large for float16.
        precision = precision.replace("--initial-loss-scale 1024", "--initial-loss-scale 1")
    return Mixture(seed, tuple(what), precision, tuple(found))
