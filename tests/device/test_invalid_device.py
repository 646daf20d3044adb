"""Device numbers beyond those of this machine fail, as they do with CUDA."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from accel_bridge.backends.cpu import _device_module
from accel_bridge.device import DeviceRedirection, InvalidDevice
from accel_bridge.errors import EnvironmentVariableError

BEYOND: dict[str, Callable[[], object]] = {
    "set_device": lambda: torch.cuda.set_device(5),
    "set_device, named": lambda: torch.cuda.set_device("cuda:5"),
    "device": lambda: torch.cuda.device(5),
    "properties": lambda: torch.cuda.get_device_properties(5),
    "synchronize": lambda: torch.cuda.synchronize("cuda:5"),
    "factory": lambda: torch.empty(1, device="cuda:5"),
    "factory, number": lambda: torch.empty(1, device=5),
    "factory, device": lambda: torch.ones(1, device=torch.device("cuda", 5)),
    "tensor.cuda": lambda: torch.ones(1).cuda(5),
    "tensor.to": lambda: torch.ones(1).to("cuda:5"),
    "module.to": lambda: torch.nn.Linear(1, 1).to("cuda:5"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_number_beyond_the_devices(all_on_cpu: DeviceRedirection, name: str) -> None:
    with pytest.raises(InvalidDevice, match="invalid device ordinal") as caught:
        BEYOND[name]()
    assert isinstance(caught.value, RuntimeError)
    assert "device_count() is 4" in str(caught.value)
    assert torch.cuda.current_device() == 0


def test_a_rank_of_a_launcher_that_says_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert _device_module.device_count() == 4
    # A program that will start six processes itself, and asks before.
    monkeypatch.setenv("ACCEL_BRIDGE_CPU_DEVICES", "6")
    assert _device_module.device_count() == 6
    monkeypatch.setenv("ACCEL_BRIDGE_CPU_DEVICES", "0")
    with pytest.raises(EnvironmentVariableError, match="no count"):
        _device_module.device_count()
