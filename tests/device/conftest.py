"""Devices to redirect to: the CPU, and a made-up one that shows the engine knows neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection, Renamed
from accel_bridge.device.backend import DeviceSpec


class RecordingModule:
    """A device module that answers every function with its name and arguments, and keeps count.

    ``torch.device("meta")`` stands behind it: tensors with a shape and no memory.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.default_generators = (torch.Generator(),)

    class Stream:
        def __init__(self, device: Any = None, priority: int = 0) -> None:
            self.device = device

    class OddGraph:
        """What ``CUDAGraph`` is called on this device."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in MISSING_FROM_MODULE:
            raise AttributeError(name)

        def record(*args: Any, **kwargs: Any) -> str:
            self.calls.append((name, args, kwargs))
            return f"{name} of the device"

        return record


#: Names that the made-up device lacks.
MISSING_FROM_MODULE = frozenset(
    {"temperature", "ipc_collect", "_lazy_call", "CUDAGraph", "MemPool", "memory", "Event"}
    | {"get_device_capability", "get_device_properties"}
)


@pytest.fixture
def cpu_spec() -> DeviceSpec:
    spec = CpuBackend().device()
    assert spec is not None
    return spec


@pytest.fixture
def on_cpu(cpu_spec: DeviceSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceRedirection]:
    """The CPU, with four devices for the four processes of a launcher."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with DeviceRedirection(cpu_spec) as redirection:
        yield redirection


@pytest.fixture(scope="module")
def all_on_cpu() -> Iterator[DeviceRedirection]:
    """As ``on_cpu``, once for a module: putting it back searches every loaded module."""
    spec = CpuBackend().device()
    assert spec is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "4")
        with DeviceRedirection(spec) as redirection:
            yield redirection
            assert redirection.applied


@pytest.fixture
def recording_module() -> RecordingModule:
    return RecordingModule()


@pytest.fixture
def meta_spec(recording_module: RecordingModule) -> DeviceSpec:
    return DeviceSpec(
        type="meta",
        module=Renamed(recording_module, CUDAGraph="OddGraph"),
        communication_backend="odd",
        pinned_memory=True,
        tensor_type="torch.meta",
    )


@pytest.fixture
def on_meta(meta_spec: DeviceSpec) -> Iterator[DeviceRedirection]:
    with DeviceRedirection(meta_spec) as redirection:
        yield redirection
