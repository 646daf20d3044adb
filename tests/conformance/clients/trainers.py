"""Trainers for any model, against PyTorch alone; modelopt's quantization, against arithmetic.

Megatron's restart in a process, against training that nothing breaks.
"""

from __future__ import annotations

import re
from typing import Final

from conformance.clients.steps import (
    Check,
    Client,
    Failed,
    Step,
    Work,
    judged,
    learns,
    says,
)


def _against_plain(trainer: str, launch: str, again: str) -> tuple[Step, ...]:
    """PyTorch alone, the same on one process and on two; twice the learning rate must show.

    :param launch: the command on one process, ``again`` on two.
    """
    short = trainer[0]

    def step(name: str, line: str, out: str, injected: bool = False) -> Step:
        check = learns("out/plain", out, whole=True, falls=False, injected=injected)
        return Step(name, line, check)

    faulty = f"out/{trainer}-injected"
    return (
        Step("reference", "python trainers.py plain out/plain", learns(out="out/plain")),
        step("one process", f"{launch} trainers.py {trainer} out/{short}1", f"out/{short}1"),
        step("DP2", f"{again} trainers.py {trainer} out/{short}2", f"out/{short}2"),
        step(
            "injected fault",
            f"accel-bridge run -- python trainers.py {trainer} {faulty} 2e-2",
            faulty,
            injected=True,
        ),
    )


def quantized(injected: bool = False) -> Check:
    """The loss after quantization is the one by hand, not the one before; then it falls."""

    def check(work: Work, printed: str) -> str:
        found = re.search(r"^LOSS (\S+) (\S+) (\S+)$", printed, re.MULTILINE)
        if found is None:
            raise Failed("it printed no loss")
        before, after, by_hand = map(float, found.groups())
        words = f"loss {before:.5f} -> {after:.5f}; {abs(after - by_hand):.1e} from that by hand"
        words = judged(words, abs(after - by_hand) <= 1e-5, injected, abs(after - before) > 1e-5)
        return words if injected else f"{words}; {learns(out='out/quantized')(work, '')}"

    return check


def _quantize(name: str, more: str = "", ranks: int = 1) -> Step:
    words = f"torchrun --standalone --nproc-per-node {ranks} quantize.py out/quantized {more}"
    return Step(name, f"accel-bridge run -- {words}".rstrip(), quantized("injected" in name))


_TORCH: Final = "torch==2.13.0"
ACCELERATE: Final = Client(
    name="Accelerate",
    installs=(f"accelerate==1.15.0 {_TORCH}",),
    shown=("accelerate", "torch"),
    steps=_against_plain(
        "accelerate",
        "accel-bridge run -- accelerate launch --num_processes 1",
        "accel-bridge run -- accelerate launch --multi_gpu --num_processes 2",
    ),
)
FABRIC: Final = Client(
    name="Lightning Fabric",
    installs=(f"lightning==2.6.6 click {_TORCH}",),
    shown=("lightning", "torch"),
    steps=_against_plain(
        "fabric",
        "accel-bridge run -- fabric run --accelerator cuda --devices 1",
        "ACCEL_BRIDGE_CPU_DEVICES=2 accel-bridge run -- fabric run --accelerator cuda "
        "--devices 2 --strategy ddp",
    ),
)
MODELOPT: Final = Client(
    name="modelopt's Megatron plugin",
    installs=(
        f"nvidia-modelopt==0.47.0 megatron-core==0.19.2 omegaconf {_TORCH}",
        "requests huggingface_hub",  # imported, and not among its requirements
    ),
    shown=("nvidia-modelopt", "megatron-core", "torch"),
    steps=(
        _quantize("quantized"),
        _quantize("quantized TP2", ranks=2),
        _quantize("injected fault", "inject"),
    ),
)


def restarted(injected: bool = False) -> Check:
    """A rank failed, and all losses are those of the step ``unbroken``; injected, they are not."""
    compare = learns("unbroken", whole=True, falls=False, injected=injected)

    def check(work: Work, printed: str) -> str:
        says("RankShouldRestart")(work, printed)
        return compare(work, printed)

    return check


_GPT: Final = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 4 --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 255 --lr 1e-3 --train-iters 6 --log-interval 1 "
    "--eval-iters 0 --tensor-model-parallel-size 2 --sequence-parallel"
)
#: On gloo the healthy ranks leave their collectives when these time out: NCCL's alone are aborted.
_RESTART: Final = (
    "--inprocess-restart --inprocess-granularity rank --inprocess-active-world-size 2 "
    "--distributed-timeout-minutes 1 --inprocess-soft-timeout 300 --inprocess-hard-timeout 400 "
    "--inprocess-heartbeat-timeout 400 --inprocess-barrier-timeout 500 "
    "--inprocess-completion-timeout 500 --save-interval 2"
)


def _pretrain(name: str, check: Check, script: str, more: str = "") -> Step:
    line = "PYTHONPATH=Megatron-LM TORCH_CPP_LOG_LEVEL=error accel-bridge run -- torchrun "
    return Step(name, f"{line}--standalone --nproc-per-node 2 {script} {_GPT}{more}", check)


RESILIENCY: Final = Client(
    name="nvidia-resiliency-ext 0.4.1 in Megatron-LM",
    installs=(f"megatron-core==0.17.1 nvidia-resiliency-ext==0.4.1 {_TORCH} omegaconf",),
    shown=("nvidia-resiliency-ext", "megatron-core", "torch"),
    # 0.18 and later forget their arguments when they restart.
    sources=(("https://github.com/NVIDIA/Megatron-LM", "core_v0.17.1"),),
    steps=(
        _pretrain("unbroken", says("iteration        6/"), "Megatron-LM/pretrain_gpt.py"),
        *(
            _pretrain(
                name,
                restarted("injected" in name),
                "restart.py",
                f" {_RESTART} --save out/{out} --load out/{out}{more}",
            )
            for name, out, more in (
                ("in-process restart", "in-process-restart", ""),
                ("injected fault", "injected-fault", " --no-load-optim"),
            )
        ),
    ),
)
