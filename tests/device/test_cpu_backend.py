"""The CPU as a backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge.backends.cpu import CpuBackend, _host


def test_probe_says_what_host_this_is() -> None:
    probe = CpuBackend().probe()
    assert probe.available
    assert probe.devices is None
    assert any("cores usable" in line for line in probe.evidence)
    assert any("GiB memory" in line for line in probe.evidence)


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
