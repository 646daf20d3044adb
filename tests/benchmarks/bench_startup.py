"""What the patches add to the start of a rank, over the device redirection alone.

Run it: ``python tests/benchmarks/bench_startup.py [PAIRS]``. Each pair starts two processes, in
turn: both activate the bridge and import Megatron with every module that a patch changes, one with
``ACCEL_BRIDGE_PATCHES=none`` (redirection only), one with all patches. Without patches Megatron
does not reach its first iteration on a CPU, so the last import is where both stop. Printed is the
processor time, user and system; nothing passes or fails.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

START = """
import importlib, os, sys
import accel_bridge.auto
import megatron.training
for name in sys.argv[1:]:
    importlib.import_module(name)
times = os.times()
print(times.user + times.system)
"""


def targets() -> list[str]:
    """Modules that patches change."""
    from accel_bridge._plugins import load_plugins

    plugins = load_plugins()
    (backend,) = (found.item for found in plugins.backends() if found.item.name == "cpu")
    return sorted({found.item.module for found in plugins.patches(backend).items})


def processor_seconds(modules: list[str], patches: str) -> float:
    """Processor time of one start."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "ACCEL_BRIDGE_BACKEND": "cpu"}
    environ |= {"ACCEL_BRIDGE_PATCHES": patches, "ACCEL_BRIDGE_LOG": "quiet"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START, *modules],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def main(words: list[str]) -> None:
    modules = targets()
    pairs = int(words[0]) if words else 5
    measured = [
        (processor_seconds(modules, "none"), processor_seconds(modules, "all"))
        for _ in range(pairs)
    ]
    without, with_patches = (statistics.median(column) for column in zip(*measured, strict=True))
    added = [patched - plain for plain, patched in measured]
    print(f"redirection alone  {without:6.2f} s")
    print(f"all patches        {with_patches:6.2f} s")
    span = f"{min(added):.2f} to {max(added):.2f} in {pairs} pairs"
    print(f"added              {statistics.median(added):6.2f} s   ({span})")


if __name__ == "__main__":
    main(sys.argv[1:])
