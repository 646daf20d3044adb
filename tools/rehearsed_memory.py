"""Rehearse the rows of docs/performance.json that state memory, and print both.

    python tools/rehearsed_memory.py [--models A,B] [--out docs/rehearsed-memory.json]

A row was measured with ``torch.cuda.max_memory_allocated`` on NVIDIA H200s, its way :data:`WAY`.
"""

from __future__ import annotations

import argparse
import json
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


def rehearse(model: str) -> tuple[float, dict[str, Any]]:
    """Peak of the fullest rank in gigabytes, and the milliseconds of a step."""
    gpus = GPUS.get(model, 1)
    arguments = shlex.split(COMMON + MODELS[model])
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "accel_bridge", "rehearse", "--device", "h200"]
        command += ["--json", file.name, "--", "torchrun", f"--nproc-per-node={gpus}"]
        script = "hybrid" if "--hybrid-layer-pattern" in arguments else "gpt"
        command += ["-m", f"accel_bridge.pretrain.pretrain_{script}", *arguments]
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
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    truth = measured()
    rows = []
    for model in options.models.split(",") if options.models else truth:
        try:
            gigabytes, step = rehearse(model)
        except (SystemExit, ValueError) as error:
            print(f"{model}: {error}", flush=True)
            continue
        real = truth.get(model, float("nan"))
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
