"""Distributed checkpoints: what a device that is not called cuda would write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorProperties

from accel_bridge.patches import dist_checkpointing


class Quantized(torch.Tensor):
    """As an FP8 weight: a subclass that knows the numbers it stands for."""

    def dequantize(self) -> torch.Tensor:
        return torch.full((2,), 3.0)


def test_quantized_weights_are_written_as_numbers() -> None:
    context: Any = SimpleNamespace(original=lambda planner, item, value: value)
    transform = dist_checkpointing._make_transform(context)
    weight = torch.zeros(2).as_subclass(Quantized)
    assert transform(None, None, weight).tolist() == [3.0, 3.0]
    for value in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), b"bytes"):
        assert transform(None, None, value) is value


def test_stored_properties_make_an_empty_tensor() -> None:
    context: Any = None
    shim: Any = dist_checkpointing._make_torch(context)
    properties = vars(TensorProperties(dtype=torch.bfloat16)) | {"strides": (1, 2)}
    empty = shim.empty((2, 3), **properties, device="meta")
    assert (empty.shape, empty.dtype) == ((2, 3), torch.bfloat16)
    assert shim.Tensor is torch.Tensor
