"""torchtitan: its trainer with FlexAttention, against PyTorch's attention with the same mask."""

from __future__ import annotations

from typing import Final

from conformance.clients.steps import Check, Client, Step, learns, says

_ARGUMENTS: Final = (
    "--module llama3 --config llama3_debugmodel --training.steps 5 --training.seq_len 256 "
    "--training.local_batch_size 2 --training.disable_cuda_graphs --debug.seed 7 "
    "--training.mixed_precision_param float32"
)


#: Where its debugging configuration looks for a tokenizer and for text.
_ASSETS: Final = (
    "mkdir -p tests/assets/c4_test && cp -r torchtitan/tests/assets/tokenizer tests/assets && "
    """yes '{"text": "What is six times seven? It is 42, of course."}' | head -8 """
    "> tests/assets/c4_test/data.json && "
)


def _run(name: str, check: Check, program: str) -> Step:
    line = f"torchrun --standalone --nproc-per-node 1 {program} {_ARGUMENTS}"
    return Step(name, f"{_ASSETS}accel-bridge run -- {line}", check)


TITAN: Final = Client(
    name="torchtitan",
    installs=(
        # It calls torch.distributed.set_timeout, which came with PyTorch 2.14.
        "torchtitan==0.3.0 torch==2.14.0 datasets<5",
    ),
    shown=("torchtitan", "torch"),
    sources=(
        ("https://github.com/pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"),
    ),
    steps=(
        _run("reference", says("Training completed"), "titan.py dense"),
        _run("llama3_debugmodel", learns("reference", whole=True), "-m torchtitan.train"),
        _run("injected fault", learns("reference", whole=True, injected=True), "titan.py injected"),
    ),
)
