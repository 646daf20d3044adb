"""The real MindSpeed on emulated NPUs: taken over, required, refused, and beside our own kernels.

    python tests/conformance/mindspeed/mindspeed_delegation.py MINDSPEED MEGATRON_0_12 MEGATRON
        [--only NAME...]

MINDSPEED is a checkout for Megatron 0.12, MEGATRON_0_12 that Megatron-LM, and MEGATRON a later one
for our own kernels. From one checkpoint, in float32, MindSpeed trains the one (`auto`, `require`),
our kernels the same one (`off`) and the other (`ours`); losses must agree to 1e-5, and another
norm's epsilon must be seen. `forced` requires MindSpeed for the later Megatron, `mock` has tokens
that the vocabulary lacks: both must be errors in three parts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindspeed_numbers import write_numbers

TOLERANCE = 1e-5
MODEL = """--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64
--max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 4 --split 100,0,0
--tokenizer-type NullTokenizer --vocab-size 255 --lr 1e-3 --min-lr 1e-4 --lr-decay-style constant
--log-interval 1 --eval-iters 0 --eval-interval 1000 --normalization RMSNorm --swiglu
--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope
--attention-dropout 0 --hidden-dropout 0 --no-gradient-accumulation-fusion
--transformer-impl local --distributed-backend nccl --ckpt-format torch --train-iters 3
--no-masked-softmax-fusion""".split()
LOADED = "--finetune --no-load-optim --no-load-rng".split()
_LOSS = re.compile(r"lm loss: ([-+.\dEe]+)")


def losses_of(text: str) -> list[float]:
    """The losses that Megatron printed."""
    return [float(loss) for loss in _LOSS.findall(text)]


@dataclass(frozen=True)
class Case:
    """One run.

    :param megatron: ``old`` or ``new`` of :class:`Sides`.
    :param mode: ``ACCEL_BRIDGE_MINDSPEED``.
    :param words: more of the command line.
    :param says: a line that it must print.
    :param refused: part of the error that it must end with; it trains where this is empty.
    :param injected: its losses must differ.
    """

    megatron: str
    mode: str
    words: tuple[str, ...] = ()
    says: str = ""
    loads: bool = True
    refused: str = ""
    injected: bool = False


_TAKEN = "MindSpeed takes over"
CASES = {
    "auto": Case("old", "auto", says=_TAKEN),
    "require": Case("old", "require", says=_TAKEN),
    "off": Case("old", "off"),
    "ours": Case("new", "auto"),
    "injected": Case("new", "auto", ("--norm-epsilon", "1e-1"), injected=True),
    "forced": Case("new", "require", refused="MindSpeed 0.12.1 is made for megatron-core 0.12"),
    "mock": Case("old", "auto", ("--mock-data",), loads=False, refused="outside the embedding"),
}


@dataclass(frozen=True)
class Sides:
    """The two Megatrons and MindSpeed."""

    mindspeed: Path
    old: Path
    new: Path
    directory: Path

    def prepare(self) -> None:
        """Numbers to train on; Megatron's mock data are others in each version."""
        write_numbers(self.directory, 255)

    def run(self, megatron: Path, words: Sequence[str], mode: str) -> tuple[int, list[float], str]:
        """Exit status, losses and output of a training on emulated NPUs."""
        with_it = megatron == self.old or mode == "require"
        search = [str(megatron), *([str(self.mindspeed)] if with_it else [])]
        data = [] if "--mock-data" in words else ["--data-path", "numbers_text_document"]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "accel_bridge", "emulate-ascend", "--"),
                *(sys.executable, "-m", "accel_bridge.run", str(megatron / "pretrain_gpt.py")),
                *(*MODEL, *data, *words),
            ],
            cwd=self.directory,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([*search, os.environ.get("PYTHONPATH", "")]),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(20000 + os.getpid() % 20000),
                "ACCEL_BRIDGE_MINDSPEED": mode,
            },
            capture_output=True,
            text=True,
            errors="replace",
        )
        text = done.stdout + done.stderr
        return done.returncode, losses_of(done.stdout), text


def main() -> int:
    """A line for each case; status 1 where one is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("mindspeed", "old", "new"):
        parser.add_argument(name, type=lambda text: Path(text).resolve())
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--logs", type=Path)
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        sides = Sides(asked.mindspeed, asked.old, asked.new, Path(name))
        sides.prepare()
        start = Path(name) / "start"
        first = ["--lr", "0", "--min-lr", "0", "--train-iters", "1"]
        save = ["--save", str(start), "--save-interval", "1"]
        status, _, text = sides.run(sides.old, [*first, *save], "auto")
        if status != 0:
            sys.exit(f"the checkpoint was not made:\n{text[-3000:]}")
        load = ["--load", str(start), *LOADED]
        reference: list[float] = []
        for case in ["auto", *(one for one in asked.only if one != "auto")]:
            of = CASES[case]
            words = [*(load if of.loads else []), *of.words]
            status, losses, text = sides.run(getattr(sides, of.megatron), words, of.mode)
            if asked.logs:
                asked.logs.mkdir(parents=True, exist_ok=True)
                (asked.logs / f"{case}.log").write_text(text, encoding="utf-8")
            reference = reference or losses
            verdict = judge(of, status, losses, reference, text)
            failed += verdict != "as it must be"
            print(f"{case}: {verdict}; status {status}, losses {losses}", flush=True)
    return int(failed > 0)


def judge(case: Case, status: int, losses: list[float], reference: list[float], text: str) -> str:
    """Whether a run ended as it must."""
    if case.refused:
        said = all(part in text for part in ("evidence:", "next:", case.refused))
        return "as it must be" if status != 0 and said else "it must be an error in three parts"
    if status != 0 or len(losses) != len(reference):
        return f"it did not train: {text.strip().splitlines()[-1][-200:]}"
    if case.says not in text:
        return f"it does not say {case.says!r}"
    difference = max(abs(a - b) for a, b in zip(losses, reference, strict=True))
    if case.injected:
        return "as it must be" if difference > TOLERANCE else "the injected fault was not seen"
    return "as it must be" if difference <= TOLERANCE else f"it differs by {difference:.2e}"


if __name__ == "__main__":
    sys.exit(main())
