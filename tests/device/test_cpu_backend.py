"""The CPU as a backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel_bridge._hookspecs import hookimpl
from accel_bridge.backends.cpu import _host, plugin
from accel_bridge.backends.cpu._backend import CpuBackend


def test_probe_says_what_host_this_is() -> None:
    probe = CpuBackend().probe()
    assert probe.available
    assert probe.devices is None
    assert any("cores usable" in line for line in probe.evidence)
    assert any("GiB memory" in line for line in probe.evidence)


def test_probe_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from accel_bridge.backends.cpu.plugin import accel_bridge_backends\n"
        "backend, = accel_bridge_backends()\n"
        "backend.probe(), backend.environment(), backend.versions(), backend.features\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_environment_keeps_what_scripts_check() -> None:
    environment = CpuBackend().environment()
    assert environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"


def test_versions_are_text() -> None:
    versions = CpuBackend().versions()
    assert {"cpu", "cores", "simd", "kernel"} <= versions.keys()
    assert all(versions.values())


def test_kernels_are_the_module_beside() -> None:
    from accel_bridge.backends.cpu.kernels import KERNELS

    assert CpuBackend().kernels() is KERNELS


def test_the_plugin_is_marked() -> None:
    assert hookimpl.project_name == "accel_bridge"
    assert hasattr(plugin.accel_bridge_backends, "accel_bridge_impl")


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu sse2 avx2 avx512f\n", "avx512f"),
        ("flags\t\t: fpu avx2 avx512f avx512_bf16\nflags\t\t: nothing\n", "avx512_bf16"),
        ("Features\t: fp asimd\n", "asimd"),
        ("flags\t\t: fpu sse2\n", None),
        ("", None),
    ],
)
def test_instruction_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, expected: str | None
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(_host, "_PROC", tmp_path)
    assert _host.simd() == expected
    assert _host.model_name()


def test_a_host_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host, "_PROC", tmp_path / "missing")
    assert _host.memory_total() == 0
    assert _host.resident_memory() == 0
    assert not _host.reset_peak_resident_memory()
    assert CpuBackend().probe().available
