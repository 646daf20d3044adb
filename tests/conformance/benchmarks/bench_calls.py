"""What a counted call of a patch, and the device redirection, cost: python bench_calls.py.

Prints nanoseconds of processor time of a call without and with them. Passes no judgement.
"""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection
from accel_bridge.patching import Kind, Patch, PatchEngine

#: Statement -> how often it is executed in one of the rounds, of which the best counts.
PATCHED = dict.fromkeys(("m.function(1)", "c.method(1)", "m.Class.static(1)", "c.prop"), 200_000)
#: ``device`` is the host first and cuda:0 when redirected.
REDIRECTED = {
    **dict.fromkeys(
        ("x + x", "torch.zeros(4)", "torch.zeros(4, device=device)", "torch.empty_like(x)"), 20_000
    ),
    **dict.fromkeys(("x.to(device)", "x.to(torch.float64)", "x.type()", "x.is_cuda"), 20_000),
    "module.to(device)": 2_000,
    "list(loader)": 3,
}
#: Qualified name in a module -> what a patch puts in its place.
REPLACED: dict[str, Callable[..., object]] = {
    "function": lambda x: x,
    "Class.method": lambda self, x: x,
    "Class.static": lambda x: x,
    "Class.prop": lambda self: self.x,
}
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


def patch(qualname: str, new: Callable[..., object]) -> Patch:
    return Patch(
        id=qualname,
        target=f"benchmarked:{qualname}",
        kind=Kind.REPLACE,
        make=lambda context: new,
        why="a benchmark",
        upstream="this file",
        removed_when="never",
        loses="nothing",
        parameters=new.__code__.co_varnames,
    )


def nanoseconds(cases: Mapping[str, int], names: dict[str, Any]) -> list[float]:
    """Of one execution of each statement, the best of several rounds."""
    options: dict[str, Any] = {"globals": names, "timer": time.process_time, "repeat": 7}
    return [
        min(timeit.repeat(statement, number=number, **options)) / number * 1e9
        for statement, number in cases.items()
    ]


def show(cases: Mapping[str, int], plain: list[float], changed: list[float]) -> None:
    print(f"{'ns':32}{'plain':>12}{'changed':>12}{'added':>12}")
    for name, before, after in zip(cases, plain, changed, strict=True):
        print(f"{name:32}{before:12.1f}{after:12.1f}{after - before:12.1f}")


def main() -> None:
    """Measure every case without and with the change."""
    module = ModuleType("benchmarked")
    exec(SOURCE, module.__dict__)
    sys.modules["benchmarked"] = module
    names: dict[str, Any] = {"m": module, "c": module.Class()}
    plain = nanoseconds(PATCHED, names)
    with PatchEngine([patch(*one) for one in REPLACED.items()]):
        show(PATCHED, plain, nanoseconds(PATCHED, names))
    loader = DataLoader(list(range(512)), batch_size=1)
    names = {"torch": torch, "x": torch.ones(4), "loader": loader, "device": torch.device("cpu")}
    names["module"] = torch.nn.Linear(4, 4)
    plain = nanoseconds(REDIRECTED, names)
    spec = CpuBackend().device()
    assert spec is not None
    redirection = DeviceRedirection(spec)
    redirection.apply()
    names["device"] = torch.device("cuda", 0)
    show(REDIRECTED, plain, nanoseconds(REDIRECTED, names))
    redirection.undo()


if __name__ == "__main__":
    main()
