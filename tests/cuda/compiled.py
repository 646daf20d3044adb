"""Every Triton kernel compiled for GPUs that are not here, by the installed Triton.

    python tests/cuda/compiled.py [CAPABILITY...]

A capability is 80, 90, 100, 120, ... Each kernel's cases are called on the host, with launches that
only compile: results mean nothing. Prints a line for each kernel, with the shared memory that a
program of it takes; the exit status is 1 where one does not compile or takes more than a GPU has.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from accel_bridge.apps.parity._cases import all_cases
from accel_bridge.apps.parity._run import check_kernel
from accel_bridge.backends.cuda.kernels import grouped_weight_gradient

#: Capability -> bytes of shared memory for a program. Source: CUDA C++ Programming Guide.
SHARED = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
FIRST_WITH_FLOAT8 = 89


class Target:
    """Triton's driver of a GPU for which kernels are compiled and not launched."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        return self._capability

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiling(capability: int, taken: dict[str, int]) -> Iterator[None]:
    """Launches compile for a capability, and note the shared memory of each function."""
    launch = JITFunction.run

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compiled = launch(function, *args, grid=grid, warmup=True, **kwargs)
        taken[function.__name__] = max(taken[function.__name__], compiled.metadata.shared)

    JITFunction.run = run
    driver.set_active(Target(capability))
    grouped_weight_gradient.capability = lambda device: divmod(capability, 10)
    try:
        yield
    finally:
        JITFunction.run = launch


def main(words: list[str]) -> int:
    """Compile for the capabilities on the command line, or all; 1 when a kernel fails."""
    sys.path.append(str(Path(__file__).parents[1]))
    from case_sample import sample
    from triton_kernels import triton_kernels

    failed = 0
    for capability in map(int, words or SHARED):
        for kernel in triton_kernels():
            name = kernel.contract.name
            if capability < FIRST_WITH_FLOAT8 and ("float8" in name or "scaled" in name):
                continue
            own = [case for case in all_cases() if case.contract == name]
            taken: dict[str, int] = defaultdict(int)
            with compiling(capability, taken):
                rows = check_kernel(kernel, sample(own, len(own) // 8 | 1))
            # torch's operators, which some kernels call too, may lack an implementation here.
            errors = [row for row in rows if "raised triton" in (row.reason or "")]
            bad = bool(errors) or not taken or max(taken.values()) > SHARED[capability]
            failed += bad
            print(f"{'FAILED' if bad else 'ok'} sm_{capability} {name}: {dict(taken)}")
            for row in errors:
                print(f"  {row.case.name}: {row.reason}"[:400])
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
