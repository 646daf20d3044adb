"""What the tests of kernels share."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from accel_bridge.apps.parity import _run
from accel_bridge.kernels.cases import Case

_yardstick = _run._yardstick


@functools.cache
def _once(case: Case) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    return _yardstick(case, case.inputs())


@pytest.fixture
def references_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the reference's results for a case once, for all kernels that are held against it."""

    def remembered(case: Case, inputs: Any) -> Any:
        return _once(case)

    monkeypatch.setattr(_run, "_yardstick", remembered)
