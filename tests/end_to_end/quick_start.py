"""MindSpeed's quick start, as its users type it."""

from __future__ import annotations

from end_to_end.launcher import Run

#: GPT_ARGS, OUTPUT_ARGS and the last line of train_distributed.sh in MindSpeed's quick start
#: (docs/zh/user-guide/quickstart.md, July 2026); only the sizes are smaller, and the data made up.
ARGUMENTS = """
--transformer-impl local --num-layers 4 --hidden-size 64 --ffn-hidden-size 224
--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1
--global-batch-size 4 --make-vocab-size-divisible-by 1 --lr 1.0e-6 --init-method-std 0.01
--no-masked-softmax-fusion --attention-softmax-in-fp32 --min-lr 1.0e-7 --weight-decay 0.1
--clip-grad 1.0 --initial-loss-scale 4096.0 --disable-bias-linear --lr-warmup-fraction 0.01 --fp16
--split 990,5,5 --log-throughput --log-interval 1 --save-interval 10000 --eval-interval 10000
--eval-iters 10 --distributed-backend nccl
""".split()

LAYOUTS = {
    "TP2 PP1": "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1",
    "TP1 PP2 with virtual stages": "--tensor-model-parallel-size 1 "
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
}


def arguments(layout: str) -> list[str]:
    """The command line of one of :data:`LAYOUTS`."""
    return [*ARGUMENTS, *LAYOUTS[layout].split()]


def check(run: Run) -> None:
    """Three iterations near the loss of a model that knows nothing, log(257)."""
    assert len(run.losses) == 3
    assert run.losses[3] < 5.7
