"""The host's time of a training step over the extension, with FP8 kernels that do nothing.

    python tests/conformance/benchmarks/host_time.py [--models A,B]

A small shape of each model trains on the CPU, where every FP8 kernel and the norms over the
extension return memory as it is: what is left is the host's way, which limits a faster GPU. Time
is the processor's, of the thread that trains.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from training_models import COMMON, MODELS

_SMALL = (
    "--num-layers 2 --hidden-size 128 --ffn-hidden-size 256 --num-attention-heads 4 "
    "--seq-length 64 --max-position-embeddings 64 --vocab-size 255 --num-workers 0 "
)
_EXPERTS = (
    "--kv-lora-rank 64 --qk-head-dim 32 --qk-pos-emb-head-dim 16 --v-head-dim 32 "
    "--moe-ffn-hidden-size 128 --moe-shared-expert-intermediate-size 128 "
)
_DENSE = "--num-query-groups 2 --kv-channels 32 "
_STEPS, _WARMUP = 30, 4


def _nothing() -> dict[Any, Any]:
    """Contract -> a kernel that only makes its results."""
    import torch

    from accel_bridge import kernels
    from accel_bridge.kernels import float8

    def made(x: Any, dtype: Any, *sizes: int) -> Any:
        return x.new_empty(x.shape, dtype=dtype), x.new_empty(sizes, dtype=torch.float32)

    def by_block(x: Any, *, dtype: Any, rows: int, **_: Any) -> Any:
        return made(x, dtype, -(-len(x) // rows), float8.blocks_of(x.shape[1]))

    def turned(x: Any, splits: Any, *, dtype: Any, **_: Any) -> Any:
        return made(x.view(-1), dtype, sum(map(float8.blocks_of, splits)), x.shape[1])

    def multiplied(a: Any, b: Any, *_: Any, dtype: Any, **__: Any) -> Any:
        return a.new_zeros(len(a), b.shape[-2], dtype=dtype)

    functions: dict[Any, Any] = {
        kernels.NORM_FORWARD: lambda x, *_, **__: (torch.zeros_like(x), None, x.new_empty(len(x))),
        kernels.NORM_BACKWARD: lambda dz, x, weight, *_, **__: (
            *(torch.zeros_like(x), torch.zeros_like(weight), None),
        ),
        float8.FLOAT8_QUANTIZE: lambda x, _, *, dtype, **__: made(x, dtype)[0],
        float8.FLOAT8_CURRENT_QUANTIZE: lambda x, *, dtype, **_: made(x, dtype, 1),
        float8.FLOAT8_BLOCK_QUANTIZE: by_block,
        float8.SCALED_MATMUL: multiplied,
        kernels.GROUPED_FLOAT8_QUANTIZE: lambda x, s, *, dtype, **_: made(x, dtype, len(s)),
        kernels.GROUPED_FLOAT8_BLOCK_TRANSPOSE: turned,
        kernels.GROUPED_SCALED_MATMUL: multiplied,
        kernels.GROUPED_SCALED_WEIGHT_GRADIENT: lambda *_, **__: None,
    }
    return {one: one.kernel(function, "does nothing") for one, function in functions.items()}


def train() -> None:
    """One training; arguments of Megatron in ``sys.argv``."""
    import accel_bridge.auto  # noqa: F401 - before Megatron

    # isort: split
    from megatron.training import training

    from accel_bridge.kernels import Kernels
    from accel_bridge.pretrain import pretrain_gpt

    nothing, resolve, step = _nothing(), Kernels.resolve, training.train_step
    Kernels.resolve = lambda self, one: nothing.get(one) or resolve(self, one)  # type: ignore[method-assign, assignment]
    times: list[float] = []

    def train_step(*args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        result = step(*args, **kwargs)
        times.append((time.thread_time() - began) * 1e3)
        if len(times) == _STEPS + _WARMUP:
            del times[:_WARMUP]
            print(f"host-time {min(times):.1f} | {statistics.median(times):.1f}", flush=True)
            os._exit(0)
        return result

    training.train_step = train_step
    pretrain_gpt.main()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    ends = ("", "-fp8-tensorwise", "-fp8-delayed", "-fp8-blockwise")
    every = ",".join(f"{model}{end}" for model in ("mla-moe", "llama-8b") for end in ends)
    parser.add_argument("--models", default=every)
    options = parser.parse_args()
    print("| model | least, ms | median, ms |\n|---|---|---|")
    for model in options.models.split(","):
        small = _SMALL + (_EXPERTS if "mla" in model else _DENSE)
        words = f"{COMMON} {MODELS[model]} {small} --train-iters {2 * _STEPS}".split()
        environ = {**os.environ, "ACCEL_BRIDGE_BACKEND": "cpu"}
        environ |= {"OMP_NUM_THREADS": "1", "HOST_TIME": "1"}
        command = [sys.executable, __file__, *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        _, _, found = done.stdout.partition("host-time ")
        print(f"| {model} | {found.strip() or done.stderr[-300:]} |", flush=True)


if __name__ == "__main__":
    train() if "HOST_TIME" in os.environ else main()
