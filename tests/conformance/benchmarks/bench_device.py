"""What the device redirection costs: python tests/conformance/benchmarks/bench_device.py.

Prints microseconds a call without and with it, and their ratio. Passes no judgement.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection

X = torch.ones(4)
MODULE = torch.nn.Linear(4, 4)
LOADER = DataLoader(list(range(512)), batch_size=1)

#: Name -> (expression, repetitions); DEVICE is the host first and cuda:0 when redirected.
CASES: dict[str, tuple[Callable[[], object], int]] = {
    "x + x (untouched)": (lambda: X + X, 20_000),
    "torch.zeros(4)": (lambda: torch.zeros(4), 20_000),
    "torch.zeros(4, device=...)": (lambda: torch.zeros(4, device=DEVICE), 20_000),
    "torch.empty_like(x)": (lambda: torch.empty_like(X), 20_000),
    "x.to(device)": (lambda: X.to(DEVICE), 20_000),
    "x.to(float64)": (lambda: X.to(torch.float64), 20_000),
    "x.type()": (lambda: X.type(), 20_000),
    "x.is_cuda": (lambda: X.is_cuda, 20_000),
    "module.to(device)": (lambda: MODULE.to(DEVICE), 2_000),
    "one epoch of a DataLoader of 512": (lambda: list(LOADER), 3),
}
DEVICE = torch.device("cpu")


def microseconds(function: Callable[[], object], repetitions: int) -> float:
    """Best of five, per call."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(repetitions):
            function()
        best = min(best, time.perf_counter() - start)
    return best / repetitions * 1e6


def main() -> None:
    """Measure every case without and with the redirection."""
    global DEVICE
    plain = {name: microseconds(*case) for name, case in CASES.items()}
    spec = CpuBackend().device()
    assert spec is not None
    start = time.perf_counter()
    redirection = DeviceRedirection(spec)
    redirection.apply()
    applied = time.perf_counter() - start
    DEVICE = torch.device("cuda", 0)
    redirected = {name: microseconds(*case) for name, case in CASES.items()}
    start = time.perf_counter()
    changes = len(redirection.changes)
    redirection.undo()
    undone = time.perf_counter() - start
    print(f"apply {applied * 1e3:.1f} ms, undo {undone * 1e3:.1f} ms, {changes} changes")
    print(f"{'':34}{'plain us':>10}{'redirected':>12}{'ratio':>8}{'added us':>10}")
    for name in CASES:
        before, after = plain[name], redirected[name]
        print(f"{name:34}{before:10.2f}{after:12.2f}{after / before:8.2f}{after - before:10.2f}")


if __name__ == "__main__":
    main()
