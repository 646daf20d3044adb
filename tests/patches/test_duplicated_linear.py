"""Weights that all tensor-parallel ranks have count once in the norm of the gradients."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_bridge.patches.tensor_parallel import PATCHES
from accel_bridge.patching import Argument

# Not imported here: collecting the tests would import Megatron.
pytestmark = pytest.mark.megatron


class Linear(torch.nn.Linear):
    """Marks its weight as Transformer Engine does."""

    def __init__(self, width: int, *, parallel_mode: str | None) -> None:
        super().__init__(width, width)
        self.weight.tensor_model_parallel = True


@pytest.mark.parametrize(("mode", "is_part"), [("duplicated", False), ("column", True)])
def test_a_duplicated_weight_is_no_part(mode: str, is_part: bool) -> None:
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate

    upstream = Linear.__init__
    signature = inspect.signature(upstream)
    context: Any = SimpleNamespace(
        original=upstream, argument=lambda name: Argument.find(signature, name)
    )
    layer = Linear.__new__(Linear)
    (patch,) = (one for one in PATCHES if one.id == "duplicated-linear")
    patch.make(context)(layer, 4, parallel_mode=mode)
    second: Any = SimpleNamespace(rank=lambda: 1)
    assert param_is_not_tensor_parallel_duplicate(layer.weight, second) is is_part
