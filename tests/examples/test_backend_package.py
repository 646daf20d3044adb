"""The package in docs/examples/backend-package: a wheel, an environment, the parity suite."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from end_to_end.launcher import ROOT

PACKAGE = ROOT / "docs" / "examples" / "backend-package"
SUITE = "from accel_bridge.apps.testing.suite import *\n"
CONFTEST = 'pytest_plugins = ["accel_bridge.apps.testing"]\n'

pytestmark = pytest.mark.example


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the package's wheel; the rest comes from this one."""
    source = tmp_path_factory.mktemp("source") / "backend-package"
    shutil.copytree(PACKAGE, source)
    wheels = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    quiet = {"check": True, "timeout": 500}
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", wheels, source],
        **quiet,
    )
    (wheel,) = wheels.glob("quipu_bridge-1.0-*.whl")
    directory = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], **quiet)
    python = directory / "bin" / "python"
    install = ["--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *install], **quiet)
    (packages,) = directory.glob("lib/python3*/site-packages")
    # What this environment has, its editable installations included.
    places = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({place!r})" for place in places]
    (packages / "others.pth").write_text("\n".join([*lines, ""]))
    devices = directory / "dev"
    devices.mkdir()
    for number in range(2):
        (devices / f"quipu{number}").touch()
    return directory


def run(environment: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script or module in the environment, on a machine with two Quipus."""
    start = () if words[0].endswith(".py") else ("-m",)
    return subprocess.run(
        [environment / "bin" / "python", *start, *words],
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=environment,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "ACCEL_BRIDGE_QUIPU": str(environment / "dev"),
            **variables,
        },
        check=False,
    )


def test_it_has_no_line_about_megatron() -> None:
    for path in PACKAGE.rglob("*"):
        if path.suffix in (".py", ".cpp", ".toml"):
            assert "megatron" not in path.read_text(encoding="utf-8").lower(), path


def test_its_entry_point_is_found_and_its_devices_are_evidence(environment: Path) -> None:
    shown = json.loads(run(environment, "accel_bridge", "backends", "--json").stdout)
    assert (shown["chosen"]["backend"], shown["chosen"]["how"]) == ("quipu", "evidence")
    done = run(
        environment,
        "accel_bridge",
        "backends",
        ACCEL_BRIDGE_QUIPU="/nowhere",
        ACCEL_BRIDGE_BACKEND="quipu",
    )
    assert done.returncode == 2
    assert "no Quipu: no device file quipu0 in /nowhere" in done.stderr


DEVICE = """
import accel_bridge
accel_bridge.activate(after_import=True)
import torch
from torch.nn import functional

x = torch.randn(4, 6, device="cuda")
assert x.device == torch.device("quipu", 0)
assert x.type() == "torch.quipu.FloatTensor" or x.type() == "torch.cuda.FloatTensor"

# Views share memory, operations in place change it, and results are the processor's.
x.view(2, 12)[:, 3:5].zero_()
assert not x.cpu().view(2, 12)[:, 3:5].any()
weight = torch.randn(6, 5, device="cuda:1", requires_grad=True)
assert weight.device.index == 1
twin = weight.detach().cpu().requires_grad_()
try:
    x @ weight
except RuntimeError as error:
    assert "tensors on quipu:0 and quipu:1" in str(error)
else:
    raise SystemExit("tensors of two devices were multiplied")
for w, y in ((weight, x.to("cuda:1")), (twin, x.cpu())):
    functional.gelu(y @ w).square().mean().backward()
assert weight.grad.device == weight.device
assert torch.equal(weight.grad.cpu(), twin.grad)
empty = torch.empty(0, device="cuda")
assert empty.resize_(5).fill_(2).sum().item() == 10
first, second = torch.split(x, 2)
second.fill_(1)
assert x[2:].sum().item() == 12

# Files keep the device, and move.
torch.save(x, "x.pt")
assert torch.load("x.pt").device.type == "quipu"
assert torch.equal(torch.load("x.pt", map_location="cpu"), x.cpu())
accel_bridge.deactivate()
"""


def test_its_tensors_are_on_a_device_of_their_own(environment: Path) -> None:
    script = environment / "device.py"
    script.write_text(DEVICE)
    done = run(environment, str(script))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "tests",
    ["kernels", "repeats or as_the_cpu_does", "layouts or moe"],
    ids=["kernels", "one device", "two devices"],
)
def test_it_passes_the_parity_suite(tests: str, environment: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_suite.py").write_text(SUITE)
    words = ["pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    words += ["--accel-bridge-backend", "quipu", "-k", tests, str(tmp_path)]
    done = run(environment, *words)
    assert done.returncode == 0, done.stdout[-6000:]
    skipped = re.search(r"(\d+) skipped", done.stdout)
    # Four devices are what one layout asks for.
    assert int(skipped[1] if skipped else 0) == ("layouts" in tests)


def test_an_injected_fault_fails_the_suite(environment: Path, tmp_path: Path) -> None:
    """A norm that is off by a hundredth is noticed by the tolerances."""
    injected = """
import sys
import accel_bridge.apps.cli.main as cli
import quipu_bridge.kernels as k
right = k.KnottedNorm.forward
k.KnottedNorm.forward = staticmethod(lambda ctx, x, f, eps: right(ctx, x, f, eps) * 1.01)
sys.exit(cli.main([*"parity kernels --backend quipu --kernel rms_norm --jobs".split(), "1"]))
"""
    script = tmp_path / "injected.py"
    script.write_text(injected)
    done = run(environment, str(script))
    assert done.returncode == 1, done.stdout + done.stderr
