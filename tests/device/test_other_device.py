"""The engine with a made-up device: what it does on the CPU is not about the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accel_bridge.device import DeviceFunctionError, DeviceRedirection, functions
from accel_bridge.device._cuda_module import DeviceProperties
from accel_bridge.device.backend import DeviceSpec

pytestmark = pytest.mark.usefixtures("on_meta")


def test_tensors_are_on_it() -> None:
    tensor = torch.zeros(2, device="cuda:0")
    assert tensor.device.type == "meta"
    assert tensor.is_cuda
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert torch.ones(2).cuda().device.type == "meta"
    assert torch.nn.Linear(2, 2).to("cuda").weight.device.type == "meta"


def test_its_module_answers(recording_module: object) -> None:
    calls = recording_module.calls  # type: ignore[attr-defined]
    assert torch.cuda.device_count() == "device_count of the device"
    torch.cuda.synchronize("cuda:1")
    torch.cuda.set_rng_state(torch.zeros(1), device=torch.device("cuda", 1))
    torch.cuda.set_device(1)
    names = [name for name, _, _ in calls]
    assert names == ["device_count", "synchronize", "set_rng_state", "set_device"]
    assert calls[1][1] == (torch.device("meta", 1),)
    assert calls[2][2] == {"device": torch.device("meta", 1)}
    assert calls[3][1] == (1,)


def test_classes_are_its_own(recording_module: object) -> None:
    stream = torch.cuda.Stream(device="cuda:1")
    assert isinstance(stream, recording_module.Stream)  # type: ignore[attr-defined]
    assert stream.device == torch.device("meta", 1)


def test_what_it_lacks() -> None:
    done = []
    torch.cuda._lazy_call(lambda: done.append(1))
    assert done == [1]
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.ipc_collect() is None
    with pytest.raises(DeviceFunctionError, match=r"temperature has no counterpart.*'meta'"):
        torch.cuda.temperature()


def test_accelerator_that_torch_found_itself_is_left(
    meta_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch, on_meta: DeviceRedirection
) -> None:
    on_meta.undo()
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("meta")
    )
    found = torch.accelerator.current_accelerator
    with DeviceRedirection(meta_spec):
        assert torch.accelerator.current_accelerator is found


def test_functions_of_its_own_take_its_tensors_only(meta_spec: DeviceSpec) -> None:
    seen = []

    def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        seen.append(approximate)
        return input

    x = torch.randn(8)
    want = torch.nn.functional.gelu(x, approximate="tanh")
    with DeviceRedirection(replace(meta_spec, parts=(functions(gelu=gelu),))):
        assert torch.equal(torch.nn.functional.gelu(x, approximate="tanh"), want)
        assert seen == []
        torch.nn.GELU("tanh")(torch.zeros(2, device="cuda"))
        assert seen == ["tanh"]
    assert torch.equal(torch.nn.functional.gelu(x, approximate="tanh"), want)


def test_a_property_that_is_stated_as_none_counts_as_not_stated() -> None:
    class Stated:
        major = None
        name = "odd"

    properties = DeviceProperties(Stated())
    assert properties.major == 8
    assert properties.name == "odd"
