"""Fixtures of the tests of shims."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import accel_bridge
from accel_bridge.libraries import LIBRARIES, ShimFinder


@pytest.fixture(scope="module")
def shims(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The first of the module's ``SHIMS``, all in place without a bridge: the references serve."""
    finder = ShimFinder([LIBRARIES[name] for name in request.module.SHIMS])
    finder.install()
    yield importlib.import_module(request.module.SHIMS[0])
    finder.remove()


@pytest.fixture(scope="module")
def te() -> Iterator[ModuleType]:
    """``transformer_engine.pytorch``: NVIDIA's own Python over the extension, on the CPU."""
    accel_bridge.activate("cpu", after_import=True)
    try:
        yield importlib.import_module("transformer_engine.pytorch")
    finally:
        accel_bridge.deactivate()


@pytest.fixture(scope="module")
def tex(te: ModuleType) -> ModuleType:
    """The extension under the name that NVIDIA's Python imports."""
    return importlib.import_module("transformer_engine_torch")


@pytest.fixture(scope="module")
def ops(te: ModuleType) -> ModuleType:
    """``transformer_engine.pytorch.ops``."""
    return importlib.import_module("transformer_engine.pytorch.ops")


@pytest.fixture
def on_device(te: ModuleType) -> Iterator[None]:
    """Tensors are the device's, as Transformer Engine wants them; FP8's state is new."""
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)  # naming the one before would leave a mode behind
    te.quantization.FP8GlobalStateManager.reset()


@pytest.fixture(scope="module")
def recipes(te: ModuleType) -> dict[str, Any]:
    """A new recipe of each kind."""
    recipe = importlib.import_module("transformer_engine.common.recipe")
    return {
        "delayed": recipe.DelayedScaling(),
        "tensorwise": recipe.Float8CurrentScaling(),
        "blockwise": recipe.Float8BlockScaling(),
        "mx": recipe.MXFP8BlockScaling(),
    }
