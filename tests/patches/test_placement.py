"""Where memory is the host's, and the device is not NVIDIA's."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.backends.cpu._backend import CpuBackend
from accel_bridge.device.backend import Features
from accel_bridge.patches.placement import PATCHES
from accel_bridge.patching import PatchContext
from accel_bridge.patching.host import Host

PATCH = next(patch for patch in PATCHES if patch.id == "fsdp-stream")


class Buffer:
    """As upstream's: a stream only for what says that it is on CUDA."""

    allocation_stream: Any

    def __init__(self, is_cuda: bool) -> None:
        self.allocation_stream = "its own" if is_cuda else None


def test_it_has_the_devices_stream() -> None:
    host = Host(CpuBackend(), lambda args: None, lambda line: None, lambda: None)
    cuda = SimpleNamespace(current_stream=lambda: "the device's")
    module: Any = SimpleNamespace(torch=SimpleNamespace(cuda=cuda))
    upstream = Buffer.__init__
    patched = PATCH.make(PatchContext(upstream, module, Buffer, host, PATCH, signature(upstream)))
    for is_cuda, stream in ((False, "the device's"), (True, "its own")):
        buffer = Buffer.__new__(Buffer)
        patched(buffer, is_cuda)
        assert buffer.allocation_stream == stream


@pytest.mark.parametrize("on_host", [False, True])
def test_tensors_of_another_memory_need_no_help(
    monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    monkeypatch.setattr(CpuBackend, "features", Features(tensors_on_host=on_host))
    host = Host(CpuBackend(), lambda args: None, lambda line: None, lambda: None)
    assert PATCH.skip_when is not None
    assert (PATCH.skip_when(host) is None) is on_host


#: As where nvidia-ml-py is installed and no driver is.
PYNVML = """
class NVMLError(Exception): ...
def nvmlInit(): raise NVMLError("NVML Shared Library Not Found")
nvmlDeviceGetHandleByIndex = nvmlDeviceGetTotalEnergyConsumption = nvmlShutdown = nvmlInit
"""
ENERGY = """
from megatron.core.energy_monitor import EnergyMonitor
monitor = EnergyMonitor()
monitor.setup()
monitor.resume()
print("energy", monitor.lap(), monitor.get_total())
"""


@pytest.mark.megatron
@pytest.mark.parametrize("patched", [True, False])
def test_energy_is_not_asked_of_nvml(forked: Any, tmp_path: Path, patched: bool) -> None:
    (tmp_path / "pynvml.py").write_text(PYNVML)
    script = tmp_path / "energy.py"
    script.write_text(ENERGY)
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "PYTHONPATH": str(tmp_path)}
    if not patched:
        environ["ACCEL_BRIDGE_PATCHES"] = "-energy-monitor"
    done = forked("-m", "accel_bridge.run", str(script), **environ)
    assert ("energy 0.0 0.0" in done.stdout) is patched, done.stderr[-2000:]
    assert ("NVML Shared Library Not Found" in done.stderr) is not patched
