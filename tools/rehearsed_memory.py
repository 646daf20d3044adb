"""Rehearse the rows of docs/performance.json that state memory, and print both.

    python tools/rehearsed_memory.py [--models A,B] [--out docs/rehearsed-memory.json]
    python tools/rehearsed_memory.py --measure     # on a GPU: shapes that no row has

A row was measured with ``torch.cuda.max_memory_allocated`` on NVIDIA H200s, its way :data:`WAY`.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "conformance" / "benchmarks"))

from training_models import (  # type: ignore[import-not-found]  # noqa: E402
    COMMON,
    GPUS,
    MODELS,
)

#: The measured rows.
WAY = "bridge"
#: A graph's private pool, whose memory the allocator keeps apart, is not rehearsed. Packed
#: sequences need mock data of another length than a command line states.
EXCEPTED = ("gpt-124m-512-local-graph", "gpt-124m-512-full-graph", "l4-h4096-8-documents")


def measured() -> dict[str, float]:
    """Model -> gigabytes."""
    rows = json.loads((ROOT / "docs" / "performance.json").read_text())
    return {
        row["model"]: row["gigabytes"]
        for row in rows
        if row["way"] == WAY and row["gigabytes"] and row["model"] not in EXCEPTED
    }


_WIDE = (
    "--bf16 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 "
    "--micro-batch-size 1 --global-batch-size 2 --seq-length 4096 --max-position-embeddings 4096 "
)
#: Shapes that no row of docs/performance.json has.
SHAPES = {
    "dense-8192": _WIDE + "--num-layers 2 --hidden-size 8192 --ffn-hidden-size 28672 "
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --kv-channels 128",
    "experts-128": _WIDE + "--num-layers 2 --hidden-size 2048 --ffn-hidden-size 6144 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 4 --kv-channels 128 "
    "--qk-layernorm --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 "
    "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 0.001 "
    "--moe-token-dispatcher-type alltoall --moe-grouped-gemm",
    "latent-mtp": _WIDE + "--num-layers 3 --hidden-size 2048 --ffn-hidden-size 8192 "
    "--num-attention-heads 16 --multi-latent-attention --kv-lora-rank 512 --q-lora-rank 768 "
    "--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --mtp-num-layers 1 "
    "--mtp-loss-scaling-factor 0.1",
    "heads-256-learnable": _WIDE + "--num-layers 4 --hidden-size 4096 --ffn-hidden-size 16384 "
    "--num-attention-heads 16 --group-query-attention --num-query-groups 4 --kv-channels 256 "
    "--softmax-type learnable",
}
_TRAIN = """
import accel_bridge.auto
import os, torch
from accel_bridge.pretrain import pretrain_gpt
try:
    pretrain_gpt.main()
finally:
    print("rank-peak", os.environ.get("RANK", "0"), torch.cuda.max_memory_allocated(), flush=True)
"""


def measure(model: str) -> float:
    """The same command on the GPUs of this machine, three steps: gigabytes of the fullest rank."""
    gpus = GPUS.get(model, 1)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_TRAIN)
        script.flush()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [
            f"--nproc-per-node={gpus}",
            script.name,
            *shlex.split(COMMON + _arguments(model)),
        ]
        command += ["--train-iters", "3", "--lr-decay-iters", "3"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    peaks = re.findall(r"rank-peak (\d+) (\d+)", made.stdout)
    if made.returncode or not peaks:
        raise SystemExit(f"{model}: {made.stderr[-3000:]}")
    for rank, peak in peaks:
        print(f"{model}: rank {rank} max_memory_allocated {int(peak):,}")
    return max(int(peak) for _, peak in peaks) / 1e9


def _arguments(model: str) -> str:
    return SHAPES.get(model) or MODELS[model]


def rehearse(model: str) -> tuple[float, dict[str, Any]]:
    """Peak of the fullest rank in gigabytes, and the milliseconds of a step."""
    gpus = GPUS.get(model, 1)
    arguments = shlex.split(COMMON + _arguments(model))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "accel_bridge", "rehearse", "--device", "h200"]
        command += ["--json", file.name, "--", "torchrun", f"--nproc-per-node={gpus}"]
        command += ["-m", "accel_bridge.pretrain.pretrain_gpt", *arguments]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        text = Path(file.name).read_text()
    if not text:
        raise SystemExit(f"{model}: {made.stderr[-2000:]}")
    found = json.loads(text)
    peak = max(rank["peak_bytes"] for rank in found["ranks"])
    return peak / 1e9, {name: found["step"][name] for name in ("seconds", "low", "high")}


def main() -> None:
    """Print the table; write the figures where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=None)
    parser.add_argument(
        "--measure", action="store_true", help="train on this machine's GPUs instead of the rows"
    )
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    truth = measured()
    names = list(SHAPES) if options.measure else list(truth)
    if options.models:
        names = options.models.split(",")
    rows = []
    for model in names:
        try:
            gigabytes, step = rehearse(model)
        except (SystemExit, ValueError) as error:
            print(f"{model}: {error}", flush=True)
            continue
        real = measure(model) if options.measure else truth.get(model, float("nan"))
        row = {"model": model, "measured": real, "rehearsed": gigabytes, "step": step}
        rows.append(row)
        print(
            f"{model:<32} measured {real:8.3f} GB, rehearsed {gigabytes:8.3f} GB "
            f"({gigabytes / real - 1:+.1%}), step {step['seconds'] * 1e3:.1f} ms",
            flush=True,
        )
    if options.out is not None:
        kept = options.models and options.out.is_file()
        known = json.loads(options.out.read_text()) if kept else []
        found = {row["model"]: row for row in (*known, *rows)}  # the others stay, in their order
        options.out.write_text(json.dumps(list(found.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()
