"""Stands for torch_npu where there is no NPU: a script may import it, and finds no NPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


class _NoNpu(ModuleType):
    """``torch.npu`` of a machine without NPUs."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise _absent(f"torch.npu.{name}") if name[:2] != "__" else AttributeError(name)


def _absent(name: str) -> AttributeError:
    return AttributeError(
        f"{name} needs an Ascend NPU\n"
        "  evidence: there is none here; `import torch_npu` found accel_bridge's empty module\n"
        "  next:     write torch.cuda, which is this machine's device, or run this on an NPU"
    )


def __getattr__(name: str) -> Any:
    raise _absent(f"torch_npu.{name}") if name[:2] != "__" else AttributeError(name)


def undo() -> None:
    """Take ``torch.npu`` away again."""
    if isinstance(vars(torch).get("npu"), _NoNpu):
        del vars(torch)["npu"]


npu = _NoNpu("torch.npu")
vars(torch).setdefault("npu", npu)
