"""Which values designate a CUDA device and what they become."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel_bridge.device import DeviceMap
from accel_bridge.device._devices import is_cuda_designation
from accel_bridge.device.backend import DeviceSpec

DESIGNATIONS = [0, 3, "cuda", "cuda:0", "cuda:3", torch.device("cuda"), torch.device("cuda", 3)]
OTHERS = [
    None,
    True,
    False,
    "cpu",
    "meta",
    "cudas",
    "not cuda",
    torch.device("cpu"),
    torch.device("meta"),
    torch.float32,
    1.0,
]


@pytest.mark.parametrize("value", DESIGNATIONS, ids=repr)
def test_designations(value: Any) -> None:
    assert is_cuda_designation(value)


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_others(value: Any, cpu_spec: DeviceSpec) -> None:
    assert not is_cuda_designation(value)
    assert DeviceMap(cpu_spec).translate(value) is value
