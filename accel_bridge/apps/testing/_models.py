"""The model that tests train, and the layouts that it is trained in."""

from __future__ import annotations

from typing import Final

#: A GPT that trains in seconds but is deep enough for two virtual stages on two ranks. At three
#: times this learning rate its gradient norm jumps, and bfloat16's rounding grows past any limit.
#: Loading data in processes of its own would take a quarter of a short run's time.
MODEL: Final = tuple(
    """
--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64
--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 8
--tokenizer-type NullTokenizer --vocab-size 255 --attention-dropout 0 --hidden-dropout 0
--mock-data --num-workers 0 --seed 42 --lr 3e-4 --min-lr 1e-4 --lr-decay-style cosine
--log-interval 1 --eval-iters 0 --eval-interval 1000
""".split()
)

#: Gated experts without bias: what Megatron's expert layers support everywhere.
MOE: Final = tuple(
    "--num-experts 4 --moe-router-topk 2 --moe-token-dispatcher-type alltoall "
    "--moe-aux-loss-coeff 0 --moe-ffn-hidden-size 64 --swiglu --disable-bias-linear".split()
)

#: Name -> (processes, Megatron's arguments): every parallel dimension, and some together.
LAYOUTS: Final = {
    "tp2-sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2-virtual": (
        2,
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    ),
    "dp2": (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    "cp2": (2, "--context-parallel-size 2"),
    "tp2-pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
}
