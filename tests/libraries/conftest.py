"""Fixtures of the tests of shims."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

import accel_bridge


@pytest.fixture(scope="module")
def te() -> Iterator[Any]:
    """``transformer_engine.pytorch`` of the shim, on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_BRIDGE_LIBRARIES", "transformer_engine")
        patch.setenv("ACCEL_BRIDGE_TE", "modules")
        accel_bridge.activate("cpu", after_import=True)
        try:
            yield importlib.import_module("transformer_engine.pytorch")
        finally:
            accel_bridge.deactivate()


@pytest.fixture(scope="module")
def ops(te: Any) -> Any:
    """``transformer_engine.pytorch.ops`` of the shim, on the CPU."""
    return importlib.import_module("transformer_engine.pytorch.ops")
