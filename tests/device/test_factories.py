"""Tensor factories, device contexts, TorchScript and pickling while redirected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._device import _device_constructors

from accel_bridge.device import DeviceRedirection
from accel_bridge.device._functions import FACTORIES
from accel_bridge.device.backend import DeviceSpec

LIKE = torch.ones(2, 2)
#: One of each form, and those that the next test's list of torch's does not have.
CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "as_tensor": lambda **k: torch.as_tensor([1.0], **k),
    "empty_like": lambda **k: torch.empty_like(LIKE, **k),
    "full": lambda **k: torch.full((2,), 1.0, **k),
    "full_like": lambda **k: torch.full_like(LIKE, 1.0, **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (2,), **k),
    "randint": lambda **k: torch.randint(3, (2,), **k),
    "randn_like": lambda **k: torch.randn_like(LIKE, **k),
    "tensor": lambda **k: torch.tensor([1.0], **k),
    "zeros_like": lambda **k: torch.zeros_like(LIKE, **k),
    "fft.fftfreq": lambda **k: torch.fft.fftfreq(3, **k),
}
FORMS = ["cuda", "cuda:1", 1, torch.device("cuda"), torch.device("cuda", 1)]


def test_every_factory_that_torch_knows_is_in_the_table() -> None:
    names = {name for names in FACTORIES.values() for name in names}
    known = {function.__name__.removeprefix("fft_") for function in _device_constructors()}
    # torch 2.6 counts two functions among them that take no device.
    assert known - {"fill", "vander"} <= names


@pytest.mark.parametrize("device", FORMS, ids=repr)
def test_factories(on_cpu: DeviceRedirection, device: Any) -> None:
    found = {name: call(device=device).device for name, call in CALLS.items()}
    assert found == dict.fromkeys(CALLS, torch.device("cpu"))


def test_pinned_memory_is_a_copy(on_cpu: DeviceRedirection) -> None:
    assert torch.empty(2, pin_memory=True).is_pinned()
    assert not torch.ones(1).new_zeros(2, device="cuda").is_pinned()
    tensor = torch.ones(2)
    pinned = tensor.pin_memory()
    assert pinned is not tensor
    assert not tensor.is_pinned()
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned


def test_device_contexts(on_cpu: DeviceRedirection) -> None:
    with torch.device("cuda", 1):
        assert torch.rand(2).device.type == "cpu"
    torch.set_default_device("cuda")
    try:
        assert torch.rand(2).device.type == "cpu"
    finally:
        torch.set_default_device(None)


def scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros([2]) + torch.full([2], 3.0) + torch.empty_like(x).fill_(1.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_torchscript_takes_the_builtins(cpu_spec: DeviceSpec) -> None:
    with DeviceRedirection(cpu_spec):
        function = torch.jit.script(scripted)
        assert function(torch.ones(2)).tolist() == [4.0, 4.0]
        assert "aten::zeros" in str(function.graph)
    assert torch.jit.script(scripted)(torch.ones(2)).tolist() == [4.0, 4.0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_compiled_functions_run(on_cpu: DeviceRedirection) -> None:
    compiled = torch.compile(lambda x: torch.zeros(2, device="cuda") + x.cuda(), backend="eager")
    assert compiled(torch.ones(2)).tolist() == [1.0, 1.0]
