"""Which values designate a CUDA device and what they become."""

from __future__ import annotations

import dataclasses
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


@pytest.mark.parametrize("value", DESIGNATIONS, ids=repr)
def test_a_device_without_numbers(
    value: Any, cpu_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    # Not cpu:0, which is unequal to the device that tensors report.
    assert DeviceMap(cpu_spec).translate(value) == torch.device("cpu")
    assert DeviceMap(cpu_spec).translate(value).index is None


@pytest.mark.parametrize(
    ("value", "index"), list(zip(DESIGNATIONS, [0, 3, None, 0, 3, None, 3], strict=True)), ids=repr
)
def test_a_device_with_numbers(value: Any, index: int | None, cpu_spec: DeviceSpec) -> None:
    devices = DeviceMap(dataclasses.replace(cpu_spec, type="xpu", indexed=True))
    for _ in range(2):  # the second answer comes from the cache
        assert devices.translate(value) == torch.device("xpu", index)  # type: ignore[arg-type]


def test_numbers_may_be_counts(cpu_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    devices = DeviceMap(cpu_spec)
    assert devices.translate_named(3) == 3
    assert type(devices.translate_named(3)) is int
    assert devices.translate_named("cuda:3") == torch.device("cpu")
    assert devices.translate_named(torch.device("cuda", 3)) == torch.device("cpu")
