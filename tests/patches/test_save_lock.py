"""A training's directory is locked however it is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches import save_lock


@pytest.mark.parametrize(
    ("save", "locked"), [("made", True), (Path("made"), True), ("msc://made", False), ("", False)]
)
def test_paths_are_locked_and_addresses_are_not(
    save: Any, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    context: Any = SimpleNamespace(
        module=SimpleNamespace(get_args=lambda: SimpleNamespace(save=save)),
        host=SimpleNamespace(once=lambda name, action: taken.append(name)),
    )
    save_lock._take(context)
    assert bool(taken) == locked
