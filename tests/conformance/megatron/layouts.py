"""What the matrix trains: tiny models, precisions and layouts, as Megatron's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: What every model has in common. Mock data of 0.12 and 0.14 has tokens up to 4095.
COMMON: Final = """
--hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
--normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope
--untie-embeddings-and-output-weights
--micro-batch-size 2 --global-batch-size 8 --tokenizer-type NullTokenizer --vocab-size 8191
--attention-dropout 0 --hidden-dropout 0 --mock-data --seed 42 --lr 3e-3 --min-lr 1e-3
--lr-decay-style cosine --lr-decay-iters 10 --log-interval 1 --eval-iters 0 --eval-interval 1000
--distributed-backend nccl --ckpt-format torch_dist --num-workers 0
""".split()

_GROUPED: Final = "--group-query-attention --num-query-groups 2"
_EXPERTS: Final = (
    "--num-experts 4 --moe-router-topk 2 --moe-token-dispatcher-type alltoall "
    "--moe-ffn-hidden-size 64"
)
_LATENT: Final = (
    "--multi-latent-attention --q-lora-rank 32 --kv-lora-rank 32 --qk-head-dim 16 "
    "--qk-pos-emb-head-dim 16 --v-head-dim 16"
)

#: Those with eight layers are for layouts of four processes: a virtual pipeline needs them.
MODELS: Final[Mapping[str, Sequence[str]]] = {
    "dense": f"--num-layers 4 {_GROUPED}".split(),
    "moe": f"--num-layers 4 {_GROUPED} {_EXPERTS}".split(),
    "mla": f"--num-layers 4 {_LATENT}".split(),
    "dense-8": f"--num-layers 8 {_GROUPED}".split(),
    "moe-8": f"--num-layers 8 {_GROUPED} {_EXPERTS}".split(),
    "mla-8": f"--num-layers 8 {_LATENT}".split(),
    "mla-moe-8": f"--num-layers 8 {_LATENT} {_EXPERTS}".split(),
}
#: A run that names no models trains these.
USUAL: Final = ("dense", "moe")

#: Name -> arguments, and the largest difference of a printed loss from one process.
PRECISIONS: Final[Mapping[str, tuple[str, float]]] = {
    "fp32": ("", 1e-5),
    "bf16": ("--bf16 --moe-grouped-gemm", 5e-3),
    "fp8": ("--bf16 --moe-grouped-gemm --fp8-format hybrid --fp8-recipe tensorwise", 1e-2),
}

#: Iterations before the shared checkpoint, before a layout's own checkpoint, and in all.
SAVED: Final = 2
RESUMED: Final = 4
ALL: Final = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """How many processes train, and how.

    :param experts: it is only for models with experts.
    :param resumes: it saves on the way, and a second run goes on from there with everything.
    :param then: layout of that second run, where it is another one: Megatron then draws random
        numbers anew, and no model here has dropout.
    :param wrong: an error is injected: its losses must *not* be those of one process.
    """

    processes: int
    arguments: str = ""
    experts: bool = False
    resumes: bool = False
    then: str = ""
    wrong: bool = False


_TP2_SP: Final = "--tensor-model-parallel-size 2 --sequence-parallel"
_PP2: Final = "--pipeline-model-parallel-size 2"
_PP4: Final = "--pipeline-model-parallel-size 4"
_CP2: Final = "--context-parallel-size 2"
_CP4: Final = "--context-parallel-size 4"
_EP2: Final = "--expert-model-parallel-size 2"
#: Without it, Megatron's distributed optimizer resumes only in the layout that has saved it.
_RESHARDED: Final = "--dist-ckpt-optim-fully-reshardable"
_DISTRIBUTED: Final = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
#: With a graph, random numbers need a generator that it can hold.
_GRAPH: Final = (
    "--te-rng-tracker --no-create-attention-mask-in-dataloader --cuda-graph-warmup-steps 1 "
    "--cuda-graph-impl"
)

LAYOUTS: Final[Mapping[str, Layout]] = {
    "one": Layout(1),
    "tp2": Layout(2, "--tensor-model-parallel-size 2"),
    "tp2-sp": Layout(2, _TP2_SP),
    "pp2-virtual": Layout(2, f"{_PP2} --num-layers-per-virtual-pipeline-stage 1"),
    "dp2": Layout(2, _DISTRIBUTED),
    "cp2": Layout(2, _CP2),
    "ep2": Layout(2, _EP2, experts=True),
    "resume": Layout(2, _TP2_SP, resumes=True),
    "injected": Layout(1, "--lr 1e-3 --min-lr 1e-4", wrong=True),
    "pp2": Layout(2, _PP2),
    "dp2-plain": Layout(2),
    "cp2-a2a": Layout(2, f"{_CP2} --cp-comm-type a2a"),
    "ep2-tp2": Layout(4, f"{_TP2_SP} {_EP2}", experts=True),
    "tp2-pp2": Layout(4, f"{_TP2_SP} {_PP2}"),
    "tp2-cp2": Layout(4, f"{_TP2_SP} {_CP2}"),
    "dp2-pp2": Layout(4, f"{_PP2} {_DISTRIBUTED}"),
    "tp2-dp2": Layout(4, f"{_TP2_SP} {_DISTRIBUTED}"),
    "cp2-dp2": Layout(4, f"{_CP2} {_DISTRIBUTED}"),
    "cp4-gather": Layout(4, f"{_CP4} --cp-comm-type all_gather"),
    "cp4-ring": Layout(4, f"{_CP4} --cp-comm-type p2p"),
    "pp4-virtual": Layout(4, f"{_PP4} --num-layers-per-virtual-pipeline-stage 1"),
    "ep4": Layout(4, "--expert-model-parallel-size 4", experts=True),
    "ep2-etp2": Layout(4, f"{_TP2_SP} {_EP2} --expert-tensor-parallel-size 2", experts=True),
    "resume-dp4": Layout(
        4,
        f"{_TP2_SP} {_PP2} {_DISTRIBUTED} {_RESHARDED}",
        resumes=True,
        then=f"{_DISTRIBUTED} {_RESHARDED} --no-load-rng",
    ),
    "graph-layers": Layout(1, f"{_GRAPH} local"),
    "graph-step": Layout(1, f"{_GRAPH} full_iteration --no-check-for-nan-in-loss-and-grad"),
}
#: A run that names no layouts trains these.
USUAL_LAYOUTS: Final = "one tp2 tp2-sp pp2-virtual dp2 cp2 ep2 resume injected".split()

#: What only four processes can hold: `matrix.py --four` trains these, on whatever backend.
FOUR_MODELS: Final = ("dense-8", "moe-8", "mla-8", "mla-moe-8")
FOUR_LAYOUTS: Final = (
    *("one", "injected", "tp2-pp2", "tp2-dp2", "cp2-dp2", "ep4", "ep2-etp2"),
    *("cp4-gather", "cp4-ring", "pp4-virtual", "resume-dp4"),
)

#: (model, layout, what its output must hold) -> a refusal of Megatron's own, in a few words.
REFUSALS: Final[Mapping[tuple[str, str, str], str]] = {
    ("moe", "tp2", "sequence parallel"): (
        "Megatron: experts and tensor parallelism need sequence parallelism"
    ),
}
