"""What a training step is made of: the device's time by kind of kernel.

A measured training profiles two more steps after those that count (``bench_training.py
--evidence``), so that an aim that is missed can be explained by the same run. The arithmetic of a
step, of any model, is the ``work`` of a rank in ``accel-bridge rehearse --json``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

#: Steps that are profiled.
PROFILED = 2
#: Kind of kernel -> what its name holds; the first that fits.
KINDS = {
    "communication": r"nccl|multimem|symm_mem",
    "attention": r"sdpa|flash|flex_attention|fmha|cudnn::fusion",
    "gemms": r"nvjet|gemm|cutlass|cublas|_gemms?\b|_add_gemms|_add_scaled_gemms",
    "casts": r"quantize|_largest|cast_transpose|amax|float8|fp8",
    "optimizer": r"multi_tensor|[Aa]dam",
}
#: Whatever is none of them: norms, activations, rotary embedding, loss, sums, copies.
REST = "rest"

#: (name, start and end in microseconds)
Kernel = tuple[str, float, float]


def parts(kernels: Iterable[Kernel], steps: int) -> dict[str, float]:
    """Milliseconds of a step by kind, ``device`` (at least one kernel runs), and ``launches``."""
    ordered = sorted(kernels, key=lambda kernel: kernel[1])
    sums = dict.fromkeys((*KINDS, REST), 0.0)
    device = until = 0.0
    for name, start, end in ordered:
        kind = next((kind for kind, words in KINDS.items() if re.search(words, name)), REST)
        sums[kind] += end - start
        device += max(0.0, end - max(start, until))
        until = max(until, end)
    found = {"device": device, **sums}
    return {
        **{kind: round(time / 1e3 / steps, 3) for kind, time in found.items()},
        "launches": len(ordered) // steps,
    }


def profile_after(module: object, steps: int) -> None:
    """In a rank: profile two steps after the first ``steps``, and print what they are made of.

    :param module: Megatron's, which has ``train_step``.
    """
    import torch

    real, done = module.train_step, 0  # type: ignore[attr-defined]
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def train_step(*args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal done
        if done == steps:
            torch.cuda.synchronize()
            profiler.start()
        result = real(*args, **kwargs)
        done += 1
        if done == steps + PROFILED:
            torch.cuda.synchronize()
            profiler.stop()
            kernels = [
                (event.name, event.time_range.start, event.time_range.end)
                for event in profiler.events()
                if event.device_type == torch.autograd.DeviceType.CUDA
                and not getattr(event, "is_user_annotation", False)
            ]
            print("bench-kernels " + json.dumps(parts(kernels, PROFILED)), flush=True)
            print("bench-longest " + json.dumps(_longest(kernels)), flush=True)
            print("bench-idle " + json.dumps(_idle(kernels)), flush=True)
        return result

    module.train_step = train_step  # type: ignore[attr-defined]


def _longest(kernels: Iterable[Kernel], number: int = 40) -> list[list[object]]:
    """[name, launches, microseconds] of the kernels that take most, for whoever reads the log."""
    found: dict[str, list[float]] = {}
    for name, start, end in kernels:
        found.setdefault(name, []).append(end - start)
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))[:number]
    return [[name[:100], len(times), round(sum(times), 1)] for name, times in ordered]


def _idle(kernels: Iterable[Kernel], number: int = 25) -> list[list[object]]:
    """[microseconds, kernel before, kernel behind] of the longest times without any kernel."""
    found: list[tuple[float, str, str]] = []
    until, last = math.inf, ""
    for name, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        if start > until:
            found.append((start - until, last, name))
        if last == "" or end > until:
            until, last = end, name
    longest = sorted(found, reverse=True)[:number]
    return [[round(time, 1), before[:60], behind[:60]] for time, before, behind in longest]
