"""Activates the bridge over an imported Megatron, trains nothing, undoes it, and compares.

Every module global and class attribute of torch and megatron is compared by identity with what
stood there before. Run as a script; exit status 1 when something was left behind.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

# Megatron first, so that the snapshot holds what it is without the bridge.
import megatron.core
import megatron.training  # noqa: F401
import torch

import accel_bridge
from accel_bridge.bridge.activation import activate

PACKAGES = ("torch", "megatron")


def snapshot() -> dict[tuple[int, str], tuple[str, Any]]:
    """(owner, name) -> (its dotted name, the raw object), over modules and their classes."""
    found: dict[tuple[int, str], tuple[str, Any]] = {}
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module_name.split(".")[0] not in PACKAGES:
            continue
        namespace = object.__getattribute__(module, "__dict__")
        for name, value in list(namespace.items()):
            found[id(module), name] = (f"{module_name}.{name}", value)
            if isinstance(value, type) and str(value.__module__).split(".")[0] in PACKAGES:
                for attribute, raw in list(vars(value).items()):
                    label = f"{value.__module__}.{value.__qualname__}.{attribute}"
                    found[id(value), attribute] = (label, raw)
    return found


def main() -> int:
    """Compare before and after."""
    for module in ("megatron.core.models.T5.t5_spec", "megatron.core.models.bert.bert_layer_specs"):
        importlib.import_module(module)
    before = snapshot()
    bridge = activate(after_import=True)
    applied = sum(status.state.value == "applied" for status in bridge.statuses)
    during = snapshot()
    changed = sum(
        key not in during or during[key][1] is not value for key, (_, value) in before.items()
    )
    assert applied > 10, bridge.summary()
    assert changed > 100
    accel_bridge.deactivate()
    left = left_behind(before)
    print(f"{len(before)} objects compared, {changed} changed in between, {applied} patches")
    print(f"left behind: {', '.join(left) or 'none'}")
    torch.cuda.is_available = lambda: False
    print(f"with an injected one: {', '.join(left_behind(before))}")
    return 1 if left else 0


def left_behind(before: dict[tuple[int, str], tuple[str, Any]]) -> list[str]:
    """What is not, or no longer, what it was."""
    after = snapshot()
    return [
        label
        for key, (label, value) in before.items()
        if key not in after or (after[key][1] is not value and not _moves_by_itself(label))
    ]


def _moves_by_itself(label: str) -> bool:
    """Caches and counters that torch itself rebinds while it is used."""
    moving = {"_initialized", "__annotations__", "__abstractmethods__", "next_id"}
    return label.rpartition(".")[2] in moving


if __name__ == "__main__":
    raise SystemExit(main())
