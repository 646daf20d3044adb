"""Trainers for any model, against PyTorch alone; modelopt's quantization, against arithmetic."""

from __future__ import annotations

import re
from typing import Final

from conformance.clients.steps import (
    Check,
    Client,
    Failed,
    Step,
    Work,
    departs,
    judged,
    same_losses,
    trains,
)

_REFERENCE: Final = Step("reference", "python trainers.py plain out/plain", trains("out/plain"))


def _injected(trainer: str) -> Step:
    """Twice the learning rate shows in the losses."""
    out = f"out/{trainer}-injected"
    command = f"accel-bridge run -- python trainers.py {trainer} {out} 2e-2"
    return Step("injected fault", command, departs(out, "out/plain", steps=10))


def quantized(injected: bool = False) -> Check:
    """The loss after quantization is the one by hand, not the one before; then it falls."""

    def check(work: Work, printed: str) -> str:
        found = re.search(r"^LOSS (\S+) (\S+) (\S+)$", printed, re.MULTILINE)
        if found is None:
            raise Failed("it printed no loss")
        before, after, by_hand = map(float, found.groups())
        words = f"loss {before:.5f} -> {after:.5f}; {abs(after - by_hand):.1e} from that by hand"
        words = judged(words, abs(after - by_hand) <= 1e-5, injected, abs(after - before) > 1e-5)
        return words if injected else f"{words}; {trains('out/quantized')(work, '')}"

    return check


def _quantize(name: str, more: str = "", ranks: int = 1) -> Step:
    words = f"torchrun --standalone --nproc-per-node {ranks} quantize.py out/quantized {more}"
    return Step(name, f"accel-bridge run -- {words}".rstrip(), quantized("injected" in name))


_TORCH: Final = "torch==2.13.0"
ACCELERATE: Final = Client(
    name="Accelerate",
    installs=(("accelerate==1.15.0", _TORCH),),
    shown=("accelerate", "torch"),
    steps=(
        _REFERENCE,
        Step(
            "one process",
            "accel-bridge run -- accelerate launch --num_processes 1 trainers.py accelerate out/a1",
            same_losses("out/a1", "out/plain"),
        ),
        Step(
            "DP2",
            "accel-bridge run -- accelerate launch --multi_gpu --num_processes 2 "
            "trainers.py accelerate out/a2",
            same_losses("out/a2", "out/plain"),
        ),
        _injected("accelerate"),
    ),
)
FABRIC: Final = Client(
    name="Lightning Fabric",
    installs=(("lightning==2.6.6", _TORCH),),
    shown=("lightning", "torch"),
    steps=(
        _REFERENCE,
        Step(
            "one process",
            "accel-bridge run -- fabric run --accelerator cuda --devices 1 "
            "trainers.py fabric out/f1",
            same_losses("out/f1", "out/plain"),
        ),
        Step(
            "DP2",
            "ACCEL_BRIDGE_CPU_DEVICES=2 accel-bridge run -- fabric run --accelerator cuda "
            "--devices 2 --strategy ddp trainers.py fabric out/f2",
            same_losses("out/f2", "out/plain"),
        ),
        _injected("fabric"),
    ),
)
MODELOPT: Final = Client(
    name="modelopt's Megatron plugin",
    installs=(("nvidia-modelopt==0.47.0", "megatron-core==0.19.2", "omegaconf", _TORCH),),
    shown=("nvidia-modelopt", "megatron-core", "torch"),
    steps=(
        _quantize("quantized"),
        _quantize("quantized TP2", ranks=2),
        _quantize("injected fault", "inject"),
    ),
)
