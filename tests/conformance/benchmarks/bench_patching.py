"""What a counted call costs: the patched function beside the replacement called as it is.

Run it: ``python bench_patching.py``. It prints a table; nothing passes or fails.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable
from types import ModuleType
from typing import Any

from accel_bridge.patching import Kind, Patch, PatchEngine

SOURCE = """
def function(x): return x
class Class:
    def __init__(self, x=1): self.x = x
    def method(self, x): return x
    @staticmethod
    def static(x): return x
    @property
    def prop(self): return self.x
"""
CALLS = 200_000


def target_module() -> ModuleType:
    module = ModuleType("benchmarked")
    exec(SOURCE, module.__dict__)
    sys.modules["benchmarked"] = module
    return module


def patch(qualname: str, new: object, parameters: tuple[str, ...]) -> Patch:
    return Patch(
        id=qualname,
        target=f"benchmarked:{qualname}",
        kind=Kind.REPLACE,
        make=lambda context: new,
        why="a benchmark",
        upstream="this file",
        removed_when="never",
        loses="nothing",
        parameters=parameters,
    )


def patches() -> list[Patch]:
    return [
        patch("function", lambda x: x, ("x",)),
        patch("Class.method", lambda self, x: x, ("self", "x")),
        patch("Class.static", lambda x: x, ("x",)),
        patch("Class.prop", lambda self: self.x, ("self",)),
    ]


def nanoseconds(statement: str, module: ModuleType) -> float:
    """Processor time of one execution, the best of several rounds."""
    names = {"m": module, "c": module.Class()}
    options: dict[str, Any] = {"globals": names, "timer": time.process_time}
    return min(timeit.repeat(statement, number=CALLS, repeat=15, **options)) / CALLS * 1e9


def measure(name: str, statement: str, module: ModuleType, setup: Callable[[], object]) -> None:
    plain = nanoseconds(statement, module)
    with PatchEngine(patches()):
        setup()
        patched = nanoseconds(statement, module)
    print(f"{name:28} {plain:8.1f} ns {patched:8.1f} ns {patched - plain:8.1f} ns")


def main() -> None:
    module = target_module()
    print(f"{'':28} {'plain':>11} {'patched':>11} {'added':>11}")
    measure("function", "m.function(1)", module, lambda: module.function(1))
    measure("method", "c.method(1)", module, lambda: module.Class().method(1))
    measure("staticmethod", "c.static(1)", module, lambda: module.Class.static(1))
    measure("property", "c.prop", module, lambda: module.Class().prop)


if __name__ == "__main__":
    main()
