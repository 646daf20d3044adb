"""Small patches for the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from accel_bridge.patching import Kind, Patch, PatchContext, PatchEngine, State


def make_patch(
    target: str,
    make: Callable[[PatchContext], object],
    parameters: tuple[str, ...] | None = None,
    *,
    id: str = "p",
    kind: Kind = Kind.WRAP,
    **more: Any,
) -> Patch:
    """A patch; ``parameters`` are those that a wrapper uses, or those that a replacement pins."""
    names = "uses" if kind is Kind.WRAP else "parameters"
    texts = {"why": "a test", "upstream": "pkg", "removed_when": "never", "loses": "the feature"}
    expected = {} if parameters is None else {names: parameters}
    return Patch(id=id, target=target, kind=kind, make=make, **{**texts, **expected, **more})


def tag(name: str) -> Callable[[PatchContext], object]:
    """A wrapper that returns ``(name, what the original returned)``."""

    def make(context: PatchContext) -> object:
        original = context.original

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return name, original(*args, **kwargs)

        return wrapper

    return make


def engine(*patches: Patch, **options: Any) -> PatchEngine:
    """An engine in which a warning is an error, unless ``warn`` is given."""
    return PatchEngine(patches, **{"warn": _refuse, **options})


def states(active: PatchEngine) -> dict[str, State]:
    return {status.patch.id: status.state for status in active.statuses}


def _refuse(line: str) -> None:
    raise AssertionError(f"unexpected warning: {line}")


def snapshot(package: str) -> dict[tuple[str, str], object]:
    """Every object in the modules and classes of a package, by place."""
    found: dict[tuple[str, str], object] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for key, value in vars(module).items():
                found[name, key] = value
                if isinstance(value, type) and value.__module__.partition(".")[0] == package:
                    found.update({(f"{name}:{key}", k): v for k, v in vars(value).items()})
    return found


def assert_same(
    before: dict[tuple[str, str], object], after: dict[tuple[str, str], object]
) -> None:
    """Both snapshots hold the same objects, by identity."""
    ignored = {"__builtins__", "__cached__", "__spec__"}
    assert before.keys() == after.keys()
    changed = [k for k in before if k[1] not in ignored and before[k] is not after[k]]
    assert changed == []


def wrap_f(module: ModuleType | str, **options: Any) -> PatchEngine:
    """An engine with one patch: what the module's ``f(x)`` gives is tagged ``w``."""
    name = module if isinstance(module, str) else module.__name__
    return engine(make_patch(f"{name}:f", tag("w"), ("x",)), **options)
