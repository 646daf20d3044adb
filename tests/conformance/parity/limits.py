"""What measured limits find and the table lets pass, and whether they cry wolf.

    python tests/conformance/parity/limits.py [--seeds 1,2,3] [--keep DIRECTORY]

Records small errors of a bfloat16 model and compares each with the run without it, by the table and
by measured limits. Then records random small models in every layout, one process with `--limits`,
float32 and bfloat16 in turn, and compares the layouts of a model pairwise by these limits: none may
depart.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "megatron"))

from megatron_programs import Trainer
from mixtures import COMMON, Mixture, draw
from parity.injected import SMALL
from random_training import known_flags
from recorder import departs, record
from warm_python import interpreter

from accel_bridge.recording import Recording

_TP2: Final = "--tensor-model-parallel-size 2"
_PP2: Final = "--pipeline-model-parallel-size 2"
_CP2: Final = "--context-parallel-size 2"
_DISTRIBUTED: Final = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
#: Processes and flags; what Megatron refuses for a model is left out.
LAYOUTS: Final = (
    *((1, ""), (1, "--attention-backend unfused")),
    *((2, _TP2), (2, f"{_TP2} --sequence-parallel"), (2, _PP2)),
    (2, f"{_PP2} --num-layers-per-virtual-pipeline-stage 1"),
    *((2, ""), (2, _DISTRIBUTED), (2, _CP2), (2, f"{_CP2} --cp-comm-type a2a")),
    *((2, "--expert-model-parallel-size 2"), (4, f"{_TP2} --sequence-parallel {_PP2}")),
    (4, f"{_PP2} {_DISTRIBUTED}"),
)
#: Models that Megatron accepts in most layouts; two have experts.
SEEDS: Final = "1,2,3,5,6,8,9,22"
#: Where errors are injected, as COMMON is for the others: long GEMMs, and a long row.
INJECTED: Final = """
--num-layers 4 --hidden-size 128 --ffn-hidden-size 1024 --num-attention-heads 4 --swiglu
--normalization RMSNorm --disable-bias-linear --position-embedding-type rope --bf16
--lr 1e-3 --lr-decay-iters 10 --micro-batch-size 1 --global-batch-size 2 --seq-length 256
--max-position-embeddings 256
""".split()
LONG: Final = (
    *"--num-layers 2 --seq-length 4352 --max-position-embeddings 4352".split(),
    *"--global-batch-size 1".split(),
)


def kept(
    directory: Path, processes: int, words: Sequence[str], error: str = "", limits: bool = False
) -> Recording | str:
    """The recording of these words, which is made once, or what was said instead."""
    name = re.sub(r"\W+", "-", " ".join((str(processes), error, *words)))
    out = directory / f"{random.Random(name).getrandbits(64):x}.rec"
    options = ["--nproc-per-node", str(processes), *(["--limits"] if limits else [])]
    return record(out, [*words, "--train-iters", "2"], options=options, error=error)


def layouts_of(mixture: Mixture) -> list[tuple[int, str]]:
    """Those in which the model computes the same.

    Megatron divides a loss that some tokens have no part in by the others of each
    context-parallel rank, of which one has more than the other.
    """
    text = " ".join(mixture.what)
    uneven = "--mtp" in text or "--eod-mask-loss" in text
    return [
        (processes, flags)
        for processes, flags in LAYOUTS
        if ("--num-experts" in text or "expert" not in flags)
        and not (uneven and "context" in flags)
    ]


def clean(directory: Path, seed: int, flags: Mapping[str, list[str]]) -> tuple[int, int]:
    """Compare the layouts of one model; (pairs, false alarms)."""
    mixture = draw(seed, flags)
    precision = ["--bf16"] if seed % 2 else []
    words = [*COMMON, *" ".join(mixture.what).split(), *precision]
    print(f"model {seed}: {' '.join((*mixture.what, *precision))}", flush=True)
    made: dict[str, Recording] = {}
    for processes, more in layouts_of(mixture):
        one = kept(directory, processes, [*words, *more.split()], limits=not made)
        if isinstance(one, str):
            print(f"  left out: [{processes}] {more}: {one}", flush=True)
            if not made:  # Megatron refuses the model
                break
        else:
            first = next(iter(made.values()), one)
            made[f"[{processes}] {more}"] = replace(one, limits=first.limits)
    alarms = 0
    for a, b in itertools.combinations(made, 2):
        if text := departs(made[a], made[b]):
            alarms += 1
            print(f"  FALSE ALARM {a} and {b}: {text}", flush=True)
    pairs = len(made) * (len(made) - 1) // 2
    print(f"  {len(made)} layouts, {pairs} pairs, {alarms} false alarms", flush=True)
    return pairs, alarms


def injected(directory: Path) -> int:
    """Print what each rule finds of each error; the number that measured limits miss."""
    missed = 0
    for error in SMALL:
        words = [*COMMON, *INJECTED, *(LONG if error == "rotary-base" else ())]
        good, bad = kept(directory, 1, words, limits=True), kept(directory, 1, words, error)
        if isinstance(good, str) or isinstance(bad, str):
            raise SystemExit(f"{error}: {good} {bad}")
        by_table = departs(replace(good, limits={}), replace(bad, limits={}))
        measured = departs(good, bad)
        missed += not measured
        print(f"{error}\n  table:    {by_table or 'PASS'}\n  measured: {measured or 'PASS'}")
    return missed


def main() -> int:
    """Print every finding; status 1 with a false alarm or an error that is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", default=SEEDS, help="of the models (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="recordings are kept, and taken from, here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        keep: Path = arguments.keep or Path(directory)
        keep.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(keep, entry="pretrain", python=interpreter())
        missed, flags = injected(keep), known_flags(trainer, keep)
        pairs = alarms = models = 0
        for seed in map(int, arguments.seeds.split(",")):
            more, false = clean(keep, seed, flags)
            pairs, alarms, models = pairs + more, alarms + false, models + (more > 0)
    print(f"{missed} of {len(SMALL)} errors missed; {pairs} pairs of {models} models, ", end="")
    print(f"{alarms} false alarms")
    return int(missed > 0 or alarms > 0)


if __name__ == "__main__":
    raise SystemExit(main())
