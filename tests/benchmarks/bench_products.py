"""cuBLAS's speed for the matrix products of a dense model, one after another without a pause.

    python tests/benchmarks/bench_products.py --models llama-8b,l4-h4096 --out rows.json

Forward, data gradient and weight gradient of each linear layer and of the output layer in bfloat16,
as often as a micro batch has them, for at least ``--seconds``: at the clock that the device keeps
when it does nothing else. What a step's products cannot beat. ``bench_training.py --merge`` takes
the rows, whose way is ``products``.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch
from bench_training import lease
from step_parts import operations
from training_models import COMMON, MODELS


def layers_of(arguments: str) -> tuple[int, list[tuple[int, int, int]]]:
    """(rows of a micro batch, (input size, output size, layers of this shape))."""
    given = dict(re.findall(r"--([a-z-]+) (\d+)", arguments))
    h, layers, heads = (
        int(given[name]) for name in ("hidden-size", "num-layers", "num-attention-heads")
    )
    d = int(given.get("kv-channels", h // heads))
    groups = int(given.get("num-query-groups", heads))
    ffn = int(given.get("ffn-hidden-size", 4 * h))
    up = ffn * (2 if "--swiglu" in arguments else 1)
    words = -(-(int(given["vocab-size"]) + 1) // 128) * 128
    rows = int(given["seq-length"]) * int(given["micro-batch-size"])
    return rows, [
        (h, d * (heads + 2 * groups), layers),
        (heads * d, h, layers),
        (h, up, layers),
        (ffn, h, layers),
        (h, words, 1),
    ]


def milliseconds(arguments: str, seconds: float, device: str = "cuda") -> float:
    """The products of one micro batch, all of them, repeated for ``seconds``."""
    rows, shapes = layers_of(arguments)
    tensors = []
    for k, m, number in shapes:
        x = torch.randn(rows, k, device=device, dtype=torch.bfloat16)
        weight = torch.randn(m, k, device=device, dtype=torch.bfloat16) * 0.02
        gradient = torch.randn(rows, m, device=device, dtype=torch.bfloat16)
        outputs = [torch.empty_like(one) for one in (gradient, x, weight)]
        tensors.append((x, weight, gradient, outputs, number))

    def micro_batch() -> None:
        for x, weight, gradient, (y, grad_x, grad_weight), number in tensors:
            for _ in range(number):
                torch.mm(x, weight.t(), out=y)
                torch.mm(gradient, weight, out=grad_x)
                torch.mm(gradient.t(), x, out=grad_weight)

    def timed(repeats: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            micro_batch()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / repeats

    micro_batch()
    once = timed(2)
    repeats = max(2, int(seconds * 1e3 / once))
    timed(repeats)  # the clock settles
    return timed(repeats)


def main() -> None:
    """Measure the models that were asked for and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default="llama-8b,l4-h4096")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--te", help="folder in which Transformer Engine is installed")
    parser.add_argument("--out", default="products.json")
    options = parser.parse_args()
    here = lease(options.te)
    rows = []
    for model in options.models.split(","):
        arguments = f"{COMMON} {MODELS[model]}"
        given = dict(re.findall(r"--(micro-batch-size|global-batch-size) (\d+)", arguments))
        batches = int(given["global-batch-size"]) // int(given["micro-batch-size"])
        taken = milliseconds(arguments, options.seconds) * batches
        speed = operations(arguments)["products"] / taken * 1e3
        row = {"model": model, "way": "products", "milliseconds": taken, "tflops": speed}
        row |= {"spread": 0.0, "gigabytes": 0.0, "error": "", "losses": [], "lease": here}
        rows.append(row)
        print(f"{model}: {taken:.1f} ms a step, {speed:.0f} TFLOP/s", flush=True)
        Path(options.out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
