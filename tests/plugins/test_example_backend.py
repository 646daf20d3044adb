"""The tutorial's package, installed by pip and used as a third party's would be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_site import Python

EXAMPLE = Path(__file__).parent / "example_backend"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package installed in it."""
    # setuptools leaves its build directory beside the sources, so they are copied first.
    source = tmp_path_factory.mktemp("source") / "example_backend"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(target), str(source)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    return target


USE = """
import accel_bridge
bridge = accel_bridge.activate("abacus", after_import=True)
import torch
from accel_bridge.kernels import RMS_NORM

assert bridge.selection.chosen.name == "abacus"
assert torch.ones(2, device="cuda").sum().item() == 2

# The device is the Abacus's own module, and not the CPU backend's.
from abacus_bridge import device
assert bridge.redirection.spec.module is device
assert torch.cuda.get_device_name() == "Abacus"
assert torch.cuda.get_device_properties(0).total_memory == device.MEMORY
assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
assert 0 < torch.cuda.memory_allocated() <= torch.cuda.max_memory_allocated()
assert torch.cuda.get_device_capability() == (8, 0)
with torch.cuda.stream(torch.cuda.Stream()):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
assert start.elapsed_time(end) >= 0

# Random numbers of the device are those of the state that torch.cuda gives and takes.
state = torch.cuda.get_rng_state()
drawn = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
assert torch.equal(drawn, torch.rand(4, device="cuda"))
assert not torch.equal(drawn, torch.rand(4, device="cuda"))
torch.cuda.manual_seed(5)
assert torch.cuda.initial_seed() == 5

# "nccl" is gloo, which averages by a sum.
import torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
value = torch.full((2,), 3.0, device="cuda")
dist.all_reduce(value, op=dist.ReduceOp.AVG)
assert value.tolist() == [3.0, 3.0]
dist.destroy_process_group()

# What the module leaves out is an error in three parts, when it is called.
try:
    torch.cuda.graph_pool_handle()
except accel_bridge.BridgeError as error:
    assert "no counterpart" in str(error)
else:
    raise SystemExit("a missing function did not raise")

kernel = bridge.selection.chosen.kernels()[RMS_NORM]
torch.manual_seed(0)
x, weight = torch.randn(3, 64), torch.randn(64)
expected = RMS_NORM.reference(x.double(), weight.double(), eps=1e-5)
torch.testing.assert_close(kernel(x, weight, eps=1e-5).double(), expected, rtol=1e-5, atol=1e-6)
try:
    torch.testing.assert_close(kernel(x, weight, eps=1.0).double(), expected)
except AssertionError:
    pass
else:
    raise SystemExit("a wrong eps was not noticed")
wide = kernel(torch.ones(1, 65537), torch.ones(65537), eps=1e-5)
assert wide.shape == (1, 65537)
exact = kernel(x.double(), weight.double(), eps=1e-5)
torch.testing.assert_close(exact, expected, rtol=1e-14, atol=1e-14)
accel_bridge.deactivate()
"""


@pytest.mark.parametrize("there", [False, True])
def test_with_its_device_it_is_chosen_by_evidence(
    python: Python, installed: Path, tmp_path: Path, there: bool
) -> None:
    device = tmp_path / "abacus0"
    if there:
        device.touch()
    environ = {"PYTHONPATH": str(installed), "ACCEL_BRIDGE_ABACUS": str(device)}
    # Leaving CUDA out keeps the test true on a machine with a GPU.
    environ["ACCEL_BRIDGE_PLUGINS"] = "-cuda,-ascend"
    document = json.loads(python("-m", "accel_bridge", "backends", "--json", **environ).stdout)
    (abacus,) = [backend for backend in document["backends"] if backend["name"] == "abacus"]
    assert (abacus["plugin"], abacus["available"]) == ("abacus", there)
    chosen = ("abacus", "evidence") if there else ("cpu", "fallback")
    assert (document["chosen"]["backend"], document["chosen"]["how"]) == chosen


@pytest.mark.slow
def test_its_device_and_kernel_work(python: Python, installed: Path, tmp_path: Path) -> None:
    (tmp_path / "abacus0").touch()
    environ = {"PYTHONPATH": str(installed), "ACCEL_BRIDGE_ABACUS": str(tmp_path / "abacus0")}
    done = python("-c", USE, **environ)
    assert done.returncode == 0, done.stderr
    assert "asked for by the argument 'abacus'; 1 x Abacus" in done.stderr
    assert "rms_norm: reference instead of abacus_bridge: the Abacus has 65536" in done.stderr
    assert "rms_norm: reference instead of abacus_bridge: the Abacus computes in" in done.stderr


def test_its_command_runs(python: Python, installed: Path, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": str(installed), "ACCEL_BRIDGE_ABACUS": str(tmp_path / "abacus0")}
    assert "  count-beads " in python("-m", "accel_bridge", "--help", **environ).stdout
    done = python("-m", "accel_bridge", "count-beads", **environ)
    assert (done.returncode, done.stdout) == (1, "0 beads\n")
    (tmp_path / "abacus0").touch()
    done = python("-m", "accel_bridge", "count-beads", **environ)
    assert (done.returncode, done.stdout) == (0, "65536 beads\n")
