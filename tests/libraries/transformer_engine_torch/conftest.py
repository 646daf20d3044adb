"""NVIDIA's own Transformer Engine over the extension, on the CPU."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import accel_bridge

WHEEL = Path(sys.prefix) / "transformer-engine"


@pytest.fixture(scope="module")
def installed() -> Iterator[str]:
    """The release of the wheel, which `make setup` puts beside the environment's packages."""
    monkeypatch = pytest.MonkeyPatch()
    if find_spec("transformer_engine") is None:
        monkeypatch.syspath_prepend(str(WHEEL))
        before = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(WHEEL), before])))
    yield version("transformer_engine")
    monkeypatch.undo()


@pytest.fixture(scope="module")
def te(installed: str) -> Iterator[ModuleType]:
    """``transformer_engine.pytorch``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_BRIDGE_TE", "extension")
        accel_bridge.activate("cpu", after_import=True)
        try:
            yield importlib.import_module("transformer_engine.pytorch")
        finally:
            accel_bridge.deactivate()


@pytest.fixture(scope="module")
def tex(te: ModuleType) -> ModuleType:
    """The extension under the name that NVIDIA's Python imports."""
    return importlib.import_module("transformer_engine_torch")
