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

import math
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "megatron"))

import megatron_programs
from mindspeed_scripts import apart
from recipe_data import write_indexed
from recipe_verdicts import Numbers, numbers_in

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
    logs: Path
    limit: float

    def prepare(self) -> None:
        """Numbers to train on; Megatron's mock data are others in each version."""
        source = random.Random(1)
        rows = [[[source.randrange(255) for _ in range(70)]] for _ in range(60)]
        write_indexed(self.directory / "numbers", rows)

    def run(self, name: str, case: Case, words: Sequence[str]) -> tuple[int, Numbers, str]:
        """Exit status, losses and output of a training on emulated NPUs."""
        megatron: Path = getattr(self, case.megatron)
        with_it = case.megatron == "old" or case.mode == "require"
        more = [str(self.mindspeed)] if with_it else []
        data = [] if "--mock-data" in words else ["--data-path", "numbers"]
        environ = megatron_programs.environment(megatron, "ascend", *more)
        status, output = megatron_programs.run(
            [
                *(sys.executable, "-m", "accel_bridge", "emulate-ascend", "--"),
                *(sys.executable, "-m", "accel_bridge.run", str(megatron / "pretrain_gpt.py")),
                *(*MODEL, *data, *words),
            ],
            environ
            | {
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(20000 + os.getpid() % 20000),
                "ACCEL_BRIDGE_MINDSPEED": case.mode,
            },
            self.directory,
            self.logs / f"{name}.log",
            self.limit,
        )
        return status, numbers_in(output), output


def main() -> int:
    """A line for each case; status 1 where one is not as it must be."""
    parser = megatron_programs.options(__doc__)
    for name in ("mindspeed", "old", "new"):
        parser.add_argument(name, type=lambda text: Path(text).resolve())
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    asked = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        logs = megatron_programs.logs_of(asked, work)
        sides = Sides(asked.mindspeed, asked.old, asked.new, work, logs, asked.limit)
        sides.prepare()
        first = ["--lr", "0", "--min-lr", "0", "--train-iters", "1"]
        save = ["--save", str(work / "start"), "--save-interval", "1"]
        status, _, text = sides.run("start", CASES["auto"], [*first, *save])
        if status != 0:
            sys.exit(f"the checkpoint was not made:\n{text[-3000:]}")
        load = ["--load", str(work / "start"), *LOADED]
        reference: Numbers = {}
        for case in ["auto", *(one for one in asked.only if one != "auto")]:
            of = CASES[case]
            words = [*(load if of.loads else []), *of.words]
            status, losses, text = sides.run(case, of, words)
            reference = reference or losses
            verdict = judge(of, status, losses, reference, text)
            failed += verdict != "as it must be"
            print(f"{case}: {verdict}; status {status}, losses {losses}", flush=True)
    return int(failed > 0)


def judge(case: Case, status: int, losses: Numbers, reference: Numbers, text: str) -> str:
    """Whether a run ended as it must."""
    if case.refused:
        said = all(part in text for part in ("evidence:", "next:", case.refused))
        return "as it must be" if status != 0 and said else "it must be an error in three parts"
    difference = apart(losses, reference)
    if status != 0 or difference == math.inf:
        return f"it did not train: {text.strip().splitlines()[-1][-200:]}"
    if case.says not in text:
        return f"it does not say {case.says!r}"
    if case.injected:
        return "as it must be" if difference > TOLERANCE else "the injected fault was not seen"
    return "as it must be" if difference <= TOLERANCE else f"it differs by {difference:.2e}"


if __name__ == "__main__":
    sys.exit(main())
