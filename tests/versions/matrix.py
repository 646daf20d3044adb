"""Trains tiny models with other Megatrons, unedited, and compares every layout with one process.

    python tests/versions/matrix.py CHECKOUT... [--layouts one,tp2-sp,...] [--models dense,moe]
        [--precision fp32] [--backend cpu] [--json FILE] [--logs FOLDER]

CHECKOUT is a folder with a Megatron's pretrain_gpt.py and its package. One process trains two
iterations and saves; every layout then loads that checkpoint and trains on, and its losses must be
those of one process. Not part of the test suite: a cell takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

#: What every model has in common. Mock data of 0.12 and 0.14 has tokens up to 4095.
COMMON: Final = """
--num-layers 4 --hidden-size 64 --num-attention-heads 4 --group-query-attention
--num-query-groups 2 --seq-length 64 --max-position-embeddings 64 --normalization RMSNorm --swiglu
--disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
--micro-batch-size 2 --global-batch-size 8 --tokenizer-type NullTokenizer --vocab-size 8191
--attention-dropout 0 --hidden-dropout 0 --mock-data --seed 42 --lr 3e-4 --min-lr 1e-4
--lr-decay-style cosine --lr-decay-iters 10 --log-interval 1 --eval-iters 0 --eval-interval 1000
--distributed-backend nccl --ckpt-format torch_dist --num-workers 0
""".split()

MODELS: Final[Mapping[str, Sequence[str]]] = {
    "dense": (),
    "moe": "--num-experts 4 --moe-router-topk 2 --moe-token-dispatcher-type alltoall "
    "--moe-ffn-hidden-size 64".split(),
}

#: Name -> (processes, arguments, only for models with experts).
LAYOUTS: Final[Mapping[str, tuple[int, str, bool]]] = {
    "one": (1, "", False),
    "tp2": (2, "--tensor-model-parallel-size 2", False),
    "tp2-sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel", False),
    "pp2-virtual": (
        2,
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
        False,
    ),
    "dp2": (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather", False),
    "cp2": (2, "--context-parallel-size 2", False),
    "ep2": (2, "--expert-model-parallel-size 2", True),
}

#: A model with experts refuses tensor parallelism without sequence parallelism.
NOT_WITH_EXPERTS: Final = frozenset({"tp2"})

#: Name -> arguments, and the largest difference of a printed loss from one process.
PRECISIONS: Final[Mapping[str, tuple[str, float]]] = {
    "fp32": ("", 2e-5),
    "bf16": ("--bf16 --moe-grouped-gemm", 2e-2),
}

_LOSS: Final = re.compile(r"iteration\s+(\d+)/.*?lm loss: ([-+.\dEe]+|nan|inf)")
#: Iterations before the checkpoint, and in all.
SAVED, ALL = 2, 6


@dataclass(frozen=True)
class Cell:
    """One layout of one model in one Megatron."""

    megatron: str
    model: str
    precision: str
    layout: str
    seconds: float
    losses: dict[int, float]
    difference: float | None
    error: str

    @property
    def passed(self) -> bool:
        """It trained, and as one process does."""
        return not self.error


def version_of(checkout: Path) -> str:
    """The version that the checkout's package_info.py spells."""
    text = (checkout / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    found = dict(
        re.findall(r"""^(MAJOR|MINOR|PATCH|PRE_RELEASE) = ['"]?([^'"\n]*)['"]?""", text, re.M)
    )
    return f"{found['MAJOR']}.{found['MINOR']}.{found['PATCH']}{found['PRE_RELEASE']}"


def train(
    checkout: Path, processes: int, arguments: Iterable[str], backend: str, folder: Path
) -> tuple[int, str]:
    """Status and output of the checkout's own pretrain_gpt.py."""
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(processes)]
    command += ["-m", "accel_bridge.run", str(checkout / "pretrain_gpt.py"), *arguments]
    if backend == "ascend":
        command = ["accel-bridge", "emulate-ascend", "--", *command]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "ACCEL_BRIDGE_BACKEND": backend,
    }
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=600,
    )
    return done.returncode, done.stdout


def last_error(output: str) -> str:
    """The last line that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b", line)]
    told += [line for line in lines if "accel-bridge: error" in line]
    return (told or lines or ["no output"])[-1][:300]


def cells(
    checkout: Path, model: str, precision: str, layouts: Sequence[str], backend: str, logs: Path
) -> Iterable[Cell]:
    """Every layout of one model, each from the checkpoint of one process."""
    version = version_of(checkout)
    flags, tolerance = PRECISIONS[precision]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shared = [*COMMON, *MODELS[model], *flags.split()]
        shared += ["--train-iters", str(ALL)]
        start = [*shared, "--exit-interval", str(SAVED), "--save", str(folder / "start")]
        status, output = train(
            checkout, 1, [*start, "--save-interval", str(SAVED)], backend, folder
        )
        reference: dict[int, float] = {}
        for layout in ["one", *(one for one in layouts if one != "one")]:
            processes, words, experts = LAYOUTS[layout]
            if (experts and model != "moe") or (model == "moe" and layout in NOT_WITH_EXPERTS):
                continue
            began = time.monotonic()
            if status == 0:
                # 0.12 refuses the generators of another layout.
                load = ["--load", str(folder / "start"), "--no-load-rng"]
                code, output = train(
                    checkout, processes, [*shared, *load, *words.split()], backend, folder
                )
            else:
                code = status
            log = logs / f"{version}-{model}-{precision}-{layout}.log"
            log.write_text(output, encoding="utf-8")
            # The first line after a load may hold a mean over two iterations.
            losses = {
                int(number): float(loss)
                for number, loss in _LOSS.findall(output)
                if int(number) > SAVED + 1
            }
            reference = reference or losses
            shared_steps = losses.keys() & reference.keys()
            difference = max(
                (abs(losses[step] - reference[step]) for step in shared_steps), default=None
            )
            error = ""
            if code or len(losses) < ALL - SAVED - 1:
                error = f"status {code}: {last_error(output)}"
            elif not all(map(math.isfinite, losses.values())):
                error = "a loss is not finite"
            elif difference is None or difference > tolerance:
                error = f"off by {difference}"
            yield Cell(
                version,
                model,
                precision,
                layout,
                round(time.monotonic() - began, 1),
                losses,
                difference,
                error,
            )


def main(words: Sequence[str] | None = None) -> int:
    """Print one line per cell; status 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "ascend", "cuda"))
    parser.add_argument("--json", type=Path, help="write every cell to this file")
    parser.add_argument("--logs", type=Path, help="keep every run's output in this folder")
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        logs: Path = arguments.logs or Path(name)
        logs.mkdir(parents=True, exist_ok=True)
        done = []
        for checkout in arguments.checkouts:
            for model in arguments.models.split(","):
                for cell in cells(
                    checkout.resolve(),
                    model,
                    arguments.precision,
                    arguments.layouts.split(","),
                    arguments.backend,
                    logs,
                ):
                    verdict = "ok" if cell.passed else f"FAILED {cell.error}"
                    off = "-" if cell.difference is None else f"{cell.difference:.1e}"
                    print(
                        f"{cell.megatron:9} {cell.model:6} {cell.precision} {cell.layout:12} "
                        f"{cell.seconds:6} s  off by {off:8} {verdict}",
                        flush=True,
                    )
                    done.append(cell)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(cell) for cell in done], indent=1))
    return int(not all(cell.passed for cell in done))


if __name__ == "__main__":
    sys.exit(main())
