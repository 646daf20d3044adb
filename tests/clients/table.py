"""What is run: the clients, their commands, and what each must have computed."""

from __future__ import annotations

import json
import re
from typing import Final

from clients.ms_swift import SWIFT
from clients.steps import TOLERANCE, Client, Failed, Step, Work


def converts(work: Work, printed: str) -> str:
    """auto_bridge.py's report: near logits, a planted error that shows, equal tensors."""
    report = json.loads(re.findall(r"^REPORT (.*)$", printed, re.MULTILINE)[-1])
    words = (
        f"logits {report['logits']:.1e} from Hugging Face's (a planted error: "
        f"{report['planted']:.1e}); {report['tensors'] - len(report['changed'])} of "
        f"{report['tensors']} tensors equal after the round trip"
    )
    if report["logits"] > TOLERANCE or report["planted"] < TOLERANCE or report["changed"]:
        raise Failed(words)
    return words


BRIDGE: Final = Client(
    name="Megatron-Bridge",
    installs=(
        # Of its dependencies some are built for CUDA alone (fast-hadamard-transform, flashinfer).
        ("--no-deps", "megatron-bridge==0.6.2"),
        (
            *("transformers==5.12.1", "peft==0.21.2", "datasets==5.2.0", "hydra-core==1.3.8"),
            *("nvidia-modelopt==0.47.0", "nvidia-resiliency-ext==0.4.1", "qwen-vl-utils"),
            *("mistral-common==1.13.1", "wandb", "megatron-core[training]==0.19.2", "einops"),
        ),
    ),
    shown=("megatron-bridge", "megatron-core", "transformers", "nvidia-modelopt", "torch"),
    steps=(
        *(
            Step(
                f"{kind} there and back",
                f"accel-bridge run auto_bridge.py models/{kind} back/{kind}",
                converts,
            )
            for kind in ("llama", "qwen3", "qwen3_moe", "deepseek_v3")
        ),
        Step(
            "qwen3_moe on two ranks",
            "accel-bridge run -- torchrun --standalone --nproc-per-node 2 auto_bridge.py "
            "models/qwen3_moe back/qwen3_moe_2",
            converts,
        ),
    ),
)

CLIENTS: Final = (SWIFT, BRIDGE)
