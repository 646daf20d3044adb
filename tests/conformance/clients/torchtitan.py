"""torchtitan: its trainer with FlexAttention, against PyTorch's attention with the same mask."""

from __future__ import annotations

import re
from typing import Final

from conformance.clients.steps import TOLERANCE, Check, Client, Failed, Step, Work, judged, says

_ARGUMENTS: Final = (
    "--module llama3 --config llama3_debugmodel --training.steps 5 --training.seq_len 256 "
    "--training.local_batch_size 2 --training.disable_cuda_graphs --debug.seed 7 "
    "--training.mixed_precision_param float32"
)


def _losses(text: str) -> list[float]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [float(loss) for loss in re.findall(r"step: +\d+ +loss: +(\S+)", plain)]


def as_by_hand(injected: bool = False) -> Check:
    """The loss falls, and is at each step that of the step `reference`; injected, it is not."""

    def check(work: Work, printed: str) -> str:
        found = _losses(printed)
        expected = _losses(work.log("reference").read_text(errors="replace"))
        if len(found) != 5 or len(expected) != 5:
            raise Failed(f"{len(found)} and {len(expected)} losses, not 5")
        apart = max(abs(a - b) for a, b in zip(found, expected, strict=True))
        words = f"loss {found[0]:.5f} -> {found[-1]:.5f}; {apart:.1e} from that by hand"
        return judged(words, apart <= TOLERANCE, injected, found[-1] < found[0])

    return check


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
        ("torchtitan==0.3.0", "torch==2.14.0", "datasets<5"),
    ),
    shown=("torchtitan", "torch"),
    sources=(
        ("https://github.com/pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"),
    ),
    steps=(
        _run("reference", says("Training completed"), "titan.py dense"),
        _run("llama3_debugmodel", as_by_hand(), "-m torchtitan.train"),
        _run("injected fault", as_by_hand(injected=True), "titan.py injected"),
    ),
)
