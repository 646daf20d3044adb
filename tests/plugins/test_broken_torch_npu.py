"""A torch_npu without CANN breaks ``import torch``; it must not stop the CPU."""

from __future__ import annotations

import pytest
from plugin_site import Python, Site

BROKEN = "raise ImportError('libhccl.so: cannot open shared object file')"
TRAIN = "import torch; print('loss', torch.ones(3, device='cuda').sum().item())"


@pytest.fixture
def broken(site: Site) -> Site:
    """torch_npu as its wheel installs it: torch imports it by itself, and it fails."""
    entry = {"torch_npu": "torch_npu:_autoload"}
    site.install("torch-npu", {"torch_npu": BROKEN}, entry, group="torch.backends")
    return site


@pytest.mark.slow
def test_it_does_break_torch(python: Python, broken: Site) -> None:
    done = python("-c", "import torch", PYTHONPATH=str(broken.directory))
    assert done.returncode != 0
    assert "libhccl.so" in done.stderr


@pytest.mark.slow
def test_it_does_not_stop_the_cpu(python: Python, broken: Site) -> None:
    environ = {"PYTHONPATH": str(broken.directory), "ACCEL_BRIDGE_BACKEND": "cpu"}
    done = python("-c", f"import accel_bridge.auto; {TRAIN}", **environ)
    assert done.returncode == 0, done.stderr
    assert "loss 3.0" in done.stdout


def test_it_does_not_stop_the_probes_of_the_others(python: Python, broken: Site) -> None:
    done = python("-m", "accel_bridge", "backends", PYTHONPATH=str(broken.directory))
    assert done.returncode == 0, done.stderr
    assert "torch_npu 1.0 is installed, which is not evidence of an NPU" in done.stdout
