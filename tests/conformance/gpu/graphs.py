"""CUDA graphs compared with runs without: the losses of every step must be the same.

    python tests/conformance/gpu/graphs.py [--out FILE] [--backend cuda] [--jobs 6] [--only llama]

Small models train without a graph, with a graph of each layer (`--cuda-graph-impl local`) and with
one of a whole iteration (`full_iteration`), each in a process of its own. Two errors are injected
and must be found: another learning rate, and graphs of layers without the patch that keeps what
their backward pass reads. Status 1 when a comparison fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

STEPS: Final = 12
COMMON: Final = f"""
--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 256
--max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 8 --mock-data
--tokenizer-type NullTokenizer --vocab-size 8191 --seed 42 --lr 1e-3 --min-lr 1e-4
--lr-decay-style cosine --lr-decay-iters {STEPS} --train-iters {STEPS} --log-interval 1
--eval-iters 0 --eval-interval 1000 --attention-dropout 0 --hidden-dropout 0 --num-workers 0
--no-create-attention-mask-in-dataloader
""".split()
_LLAMA: Final = (
    "--normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope "
    "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights"
)
#: Model -> arguments, and the largest difference of a printed loss.
MODELS: Final[Mapping[str, tuple[str, float]]] = {
    "gpt fp32": ("", 1e-5),
    "gpt bf16": ("--bf16", 2e-3),
    "llama fp32": (_LLAMA, 1e-5),
    "llama bf16": (f"{_LLAMA} --bf16", 2e-3),
    "llama fp8": (f"{_LLAMA} --bf16 --fp8-format hybrid --fp8-recipe delayed", 1e-2),
}
#: With a graph, random numbers need a generator that it can hold.
_RANDOM: Final = "--te-rng-tracker"
MODES: Final[Mapping[str, str]] = {
    "none": _RANDOM,
    "local": f"{_RANDOM} --cuda-graph-impl local",
    "full_iteration": f"{_RANDOM} --cuda-graph-impl full_iteration "
    "--no-check-for-nan-in-loss-and-grad",
    "injected": f"{_RANDOM} --lr 1.1e-3",
    "unkept": f"{_RANDOM} --cuda-graph-impl local",
}
#: Modes whose losses must differ; the second only where there are graphs.
WRONG: Final = ("injected", "unkept")


@dataclass(frozen=True, slots=True)
class Result:
    """One model in one mode.

    :param difference: largest of a printed loss from the run without a graph; None without losses.
    """

    model: str
    mode: str
    passed: bool
    difference: float | None
    error: str = ""


def train(model: str, mode: str, backend: str) -> tuple[dict[int, float], str]:
    """Losses by step, and what went wrong."""
    words = [*COMMON, *MODELS[model][0].split(), *MODES[mode].split()]
    command = [sys.executable, "-m", "accel_bridge", "pretrain", "--standalone", "--", *words]
    environment = {**os.environ, "ACCEL_BRIDGE_BACKEND": backend}
    if mode == "unkept":
        environment["ACCEL_BRIDGE_PATCHES"] = "-graph-saved-tensors"
    with tempfile.TemporaryDirectory() as directory:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, "no end within 240 s"
    output = done.stdout + done.stderr
    found = re.findall(r"iteration\s+(\d+)/.*?lm loss: ([-+.\dEe]+|nan)", output)
    losses = {int(step): float(loss) for step, loss in found}
    lines = [line for line in output.splitlines() if "rror" in line] or output.splitlines()[-1:]
    return losses, "" if done.returncode == 0 else " | ".join(lines[-4:])[-600:]


def judge(
    model: str, mode: str, losses: Mapping[int, float], without: Mapping[int, float], error: str
) -> Result:
    """Compare a run with the one without a graph."""
    if error or len(losses) < STEPS or len(without) < STEPS:
        return Result(model, mode, False, None, error or "losses are missing")
    difference = max(abs(losses[step] - without[step]) for step in without)
    same = difference <= MODELS[model][1]  # false for nan
    return Result(model, mode, same != (mode in WRONG), difference)


def main(words: Sequence[str] | None = None) -> int:
    """Train everything, print a line for each comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--jobs", type=int, default=6, help="trainings at a time")
    parser.add_argument("--only", default="", help="models whose name holds this")
    options = parser.parse_args(words)
    models = [model for model in MODELS if options.only in model]
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            (model, mode): pool.submit(train, model, mode, options.backend)
            for model in models
            for mode in MODES
            if options.backend == "cuda" or mode != "unkept"
        }
        for (model, mode), run in runs.items():
            losses, error = run.result()
            result = judge(model, mode, losses, runs[model, "none"].result()[0], error)
            results.append(result)
            print("PASS" if result.passed else "FAIL", result, flush=True)
            if options.out:
                options.out.write_text(json.dumps([asdict(one) for one in results]))
    return int(not all(result.passed for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
