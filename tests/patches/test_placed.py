"""What Megatron takes for granted of a device: its name, its memory, its streams, its libraries."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patched_function import patched
from plugin_site import Python

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device import DeviceRedirection
from accel_bridge.device.backend import Features
from accel_bridge.patches import optimizer, placement, signals
from accel_bridge.patching.host import Host


def upstream(local_rank: int | None = None) -> torch.device:
    """Upstream's: a device for nccl and gloo, else an error without a word."""
    if torch.distributed.get_backend() == "gloo":
        return torch.device("cpu")
    raise RuntimeError


@pytest.mark.parametrize(("backend", "expected"), [("gloo", "cpu"), ("hccl", "meta")])
def test_the_exit_signals_collective_has_a_device_for_every_backend(
    monkeypatch: pytest.MonkeyPatch, backend: str, expected: str
) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, device: empty(size, device="meta"))
    wrapped = patched(signals.PATCHES, upstream)
    assert wrapped().type == expected
    assert wrapped(0).type == expected


class Buffer:
    """As upstream's: a stream only for what says that it is on CUDA."""

    allocation_stream: Any

    def __init__(self, is_cuda: bool) -> None:
        self.allocation_stream = "its own" if is_cuda else None


@pytest.mark.parametrize("on_host", [False, True])
def test_a_buffer_of_fsdp_has_the_devices_stream(
    monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    """Tensors of another memory need no help."""
    monkeypatch.setattr(CpuBackend, "features", Features(tensors_on_host=on_host))
    host = Host(CpuBackend(), lambda args: None, lambda line: None, lambda: None)
    (patch,) = (one for one in placement.PATCHES if one.id == "fsdp-stream")
    assert patch.skip_when is not None
    assert (patch.skip_when(host) is None) is on_host
    cuda = SimpleNamespace(current_stream=lambda: "the device's")
    module = SimpleNamespace(torch=SimpleNamespace(cuda=cuda))
    new = patched([patch], Buffer.__init__, module=module, owner=Buffer, host=host)
    for is_cuda, stream in ((False, "the device's"), (True, "its own")):
        buffer = Buffer.__new__(Buffer)
        new(buffer, is_cuda)
        assert buffer.allocation_stream == stream


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

#: Fine-grained activation offloading where a chunk keeps all its tensors on the device.
OFFLOAD = """
import torch
from megatron.core.pipeline_parallel.fine_grained_activation_offload import (
    FineGrainedActivationOffloadingInterface as Offloading,
    PipelineOffloadManager,
)
from megatron.core.transformer import TransformerConfig

NAMES = ("attn_norm", "moe_act")


def layer(x):
    for name in NAMES:
        part = Offloading(True, x, name)
        with part as x:
            x = (x * x).tanh()
        x = part.group_offload(x)
    return x


def iteration(layers):
    Offloading.reset()
    losses = []
    for microbatch in range(2):  # of one chunk each, as with a pipeline of one stage
        Offloading.init_chunk_handler(0, 1, None, 1, 0, 1.0)
        x = torch.linspace(-1, 1, 64, device="cuda", requires_grad=True)
        y = x
        for _ in range(layers):
            y = layer(y)
        losses.append((x, y.sum()))
        losses[-1][1].backward()
    return [x.grad.sum().item() for x, _ in losses]


store = torch.distributed.HashStore()
torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
for layers in (1, 2):
    PipelineOffloadManager.reset_instance()
    assert len({tuple(iteration(layers)) for _ in range(3)}) == 1
print("the same gradients in each iteration")
"""


@pytest.mark.megatron
@pytest.mark.parametrize("patched", [True, False])
@pytest.mark.parametrize(
    ("patch", "code", "expected", "without"),
    [
        ("energy-monitor", ENERGY, "energy 0.0 0.0", "NVML Shared Library Not Found"),
        ("offload-chunks", OFFLOAD, "the same gradients", "Chunk mismatch"),
    ],
    ids=["energy", "offload"],
)
def test_a_script_runs_that_upstream_fails_on(
    patch: str,
    code: str,
    expected: str,
    without: str,
    patched: bool,
    forked: Python,
    tmp_path: Path,
) -> None:
    (tmp_path / "pynvml.py").write_text(PYNVML)
    script = tmp_path / "script.py"
    script.write_text(code)
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "PYTHONPATH": str(tmp_path)}
    if not patched:
        environ["ACCEL_BRIDGE_PATCHES"] = f"-{patch}"
    done = forked("-m", "accel_bridge.run", str(script), **environ)
    assert (expected in done.stdout) is patched, done.stderr[-2000:]
    assert (without in done.stderr) is not patched


METHOD = "_get_sub_optimizer_param_groups"


def step(fraction: float, dtype: torch.dtype) -> tuple[torch.Tensor, Any]:
    """(how far each weight moved, the optimizer) after one step of Adam at rate 0.5."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    layer = torch.nn.Linear(4, 4, dtype=dtype).cuda()
    before = [weight.detach().clone() for weight in layer.parameters()]
    optimizer = HybridDeviceOptimizer(
        list(layer.parameters()),
        offload_fraction=fraction,
        cpu_optimizer_cls=torch.optim.Adam,
        gpu_optimizer_cls=torch.optim.Adam,
        param_update_in_fp32=dtype != torch.float32,
        lr=0.5,
    )
    layer(torch.ones(2, 4, dtype=dtype, device="cuda")).sum().backward()
    optimizer.step()
    moved = [(a - b).abs().min() for a, b in zip(layer.parameters(), before, strict=True)]
    return torch.stack(moved), optimizer


@pytest.mark.megatron
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_offloaded_weights_move(
    monkeypatch: pytest.MonkeyPatch, fraction: float, dtype: torch.dtype
) -> None:
    """With the optimizer's states on the host, where every tensor is a host tensor."""
    from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer

    redirection = DeviceRedirection(CpuBackend().device())
    redirection.apply()
    try:
        if fraction and dtype != torch.float32:
            # Upstream alone trains copies of the weights, of which nobody knows the side.
            moved, _ = step(fraction, dtype)
            assert moved.min() == 0
        upstream = getattr(HybridDeviceOptimizer, METHOD)
        new = patched(optimizer.PATCHES, upstream, "optimizer-offload")
        monkeypatch.setattr(HybridDeviceOptimizer, METHOD, new)
        moved, made = step(fraction, dtype)
        assert moved.min() > 0.4
        assert bool(made.cpu_optimizers) == (fraction > 0)
        assert (made.gpu_optimizer is None) == (fraction == 1.0)
    finally:
        redirection.undo()


HIDDEN = """
import accel_bridge
accel_bridge.activate()
try:
    import transformer_engine
except ImportError:
    print("hidden")
accel_bridge.deactivate()
import transformer_engine
print("back:", transformer_engine.WORD)
"""


@pytest.mark.slow
def test_a_library_that_cannot_work_is_hidden_and_back_after_undo(
    forked: Python, tmp_path: Path
) -> None:
    """With one line; it has no shim."""
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("WORD = 'itself'\n")
    done = forked("-c", HIDDEN, PYTHONPATH=str(tmp_path), ACCEL_BRIDGE_LIBRARIES="none")
    assert done.stdout.splitlines() == ["hidden", "back: itself"], done.stderr[-2000:]
    assert "transformer_engine is installed but cannot work on CPU: hidden" in done.stderr
