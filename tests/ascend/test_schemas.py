"""Every call of the NPU's kernels against the real torch_npu's schemas and Meta kernels.

Needs no compiler and no CANN: the libraries that torch_npu wants are written by Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bridge.backends.ascend.emulator._torch_npu import find_torch_npu

from . import model, stub_cann

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64",
    reason="the substitute libraries hold x86-64 machine code",
)


@pytest.fixture(scope="module")
def site() -> Path:
    """The directory of the torch_npu that the emulator uses too."""
    return find_torch_npu(install=True).site


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory, site: Path) -> Path:
    directory = tmp_path_factory.mktemp("cann")
    stub_cann.write(directory, site)
    return directory


def look(libraries: Path, site: Path, *options: str) -> dict[str, Any]:
    """What the child process found."""
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PYTHONPATH": str(TESTS),
    }
    command = [sys.executable, "-m", "ascend.schema_runner", str(site), *options]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_call_fits(libraries: Path, site: Path) -> None:
    found = look(libraries, site)
    assert found["problems"] == []
    assert set(found["calls"]) == {f"npu::{name}" for name in model.SCHEMAS} | {
        "aten::_fused_adamw_"
    }
    without_meta = {name for name in found["calls"] if name not in found["computed"]}
    assert without_meta == {"npu::npu_fusion_attention"}
    for name, schema in model.SCHEMAS.items():
        real = torch._C.parse_schema(found["schemas"][name]).arguments
        ours = torch._C.parse_schema(f"npu::{name}{schema}").arguments
        described = [[(a.name, str(a.type)) for a in side] for side in (ours, real)]
        assert described[0] == described[1][: len(ours)], name


@pytest.mark.conformance
def test_wrong_calls_are_found(libraries: Path, site: Path) -> None:
    problems = look(libraries, site, "--inject")["problems"]
    assert any(line.startswith("swiglu") and "axis" in line for line in problems)
    assert any(line.startswith("rms_norm") and "expected" in line for line in problems)
    assert all(line.startswith(("swiglu", "rms_norm")) for line in problems)


def test_a_library_is_written_and_read_without_a_compiler(tmp_path: Path) -> None:
    path = tmp_path / "libplain.so"
    path.write_bytes(stub_cann.shared_library("libplain.so", ["first", "second"]))
    library = ctypes.CDLL(str(path))
    assert (library.first(), library.second(7)) == (0, 0)
    assert not hasattr(library, "third")
    assert stub_cann.undefined(path) == set()
