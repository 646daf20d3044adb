"""vLLM starts on a platform that has no sleep mode, though it is asked for one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.patches.serving import PATCHES


@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_sleep_mode_is_asked_for_where_there_is_one(
    asked: bool, available: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = SimpleNamespace(device_type="cpu", is_sleep_mode_available=lambda: available)
    module = SimpleNamespace(current_platform=platform)
    monkeypatch.setitem(sys.modules, "vllm.platforms", module)
    said: list[str] = []
    context: Any = SimpleNamespace(
        original=lambda self: self.enable_sleep_mode, host=SimpleNamespace(say_once=said.append)
    )
    given = SimpleNamespace(enable_sleep_mode=asked)
    make: Any = PATCHES[0].make
    assert make(context)(given) is (asked and available)
    assert bool(said) is (asked and not available)
