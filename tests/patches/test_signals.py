"""The device of the exit signal's collective."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, cast

import pytest
import torch

from accel_bridge.patches.signals import PATCHES
from accel_bridge.patching import PatchContext


def upstream(local_rank: int | None = None) -> torch.device:
    """Upstream's: a device for nccl and gloo, else an error without a word."""
    if torch.distributed.get_backend() == "gloo":
        return torch.device("cpu")
    raise RuntimeError


@pytest.mark.parametrize(("backend", "expected"), [("gloo", "cpu"), ("hccl", "meta")])
def test_every_communication_backend_has_a_device(
    monkeypatch: pytest.MonkeyPatch, backend: str, expected: str
) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, device: empty(size, device="meta"))
    (patch,) = PATCHES
    declared = inspect.signature(upstream)
    context = PatchContext(upstream, cast(ModuleType, None), None, None, patch, declared)
    wrapped = cast(Any, patch.make(context))
    assert wrapped().type == expected
    assert wrapped(0).type == expected
