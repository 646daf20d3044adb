"""The Ascend probe, with a file system, tools and versions of the test's own."""

from __future__ import annotations

import os
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from plugin_site import Site

from accel_bridge.backends._torch_build import TorchBuild
from accel_bridge.backends.ascend import _tools
from accel_bridge.backends.ascend._backend import AscendBackend
from accel_bridge.backends.ascend._probe import AscendProbe
from accel_bridge.backends.ascend._tools import (
    ImportCheck,
    NpuSmi,
    ask_npu_smi,
    import_torch_npu,
    parse_npu_smi,
)
from accel_bridge.device.backend import Memory, Probe

CPU_TORCH = TorchBuild("2.13.0+cpu", None)
CUDA_TORCH = TorchBuild("2.13.0+cu130", "13.0")
TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 90.4        34                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3311 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | 88.0        35                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3311 / 65536         |
+===========================+===============+====================================================+
"""


@dataclass
class Machine:
    """What the probe meets, and what it asked."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    smi: NpuSmi = field(default_factory=lambda: NpuSmi(parse_npu_smi(TABLE)))
    torch: TorchBuild | None = CPU_TORCH
    torch_npu: str | None = "2.13.0"
    check: ImportCheck = field(default_factory=lambda: ImportCheck(2, "torch_npu 2.13.0"))
    asked: list[str] = field(default_factory=list)

    def backend(self) -> AscendBackend:
        def note(name: str) -> None:
            self.asked.append(name)

        def smi() -> NpuSmi:
            note("npu-smi")
            return self.smi

        def check() -> ImportCheck:
            note("import")
            return self.check

        probe = AscendProbe(
            self.root,
            False,
            self.environ,
            smi,
            lambda: self.torch,
            lambda: self.torch_npu,
            check,
        )
        return AscendBackend(probe)

    def probe(self) -> Probe:
        return self.backend().probe()


@pytest.fixture
def empty(tmp_path: Path) -> Machine:
    """A machine without an NPU."""
    (tmp_path / "dev").mkdir()
    return Machine(tmp_path)


@pytest.fixture
def ascend(empty: Machine) -> Machine:
    """A machine with two NPUs, driver and CANN."""
    for name in ("davinci0", "davinci1", "davinci_manager", "hisi_hdc"):
        (empty.root / "dev" / name).touch()
    driver = empty.root / "usr/local/Ascend/driver"
    driver.mkdir(parents=True)
    (driver / "version.info").write_text("Version=24.1.rc2\nascendhal_version=7.35\n")
    cann = empty.root / "opt/cann/aarch64-linux"
    cann.mkdir(parents=True)
    (cann / "ascend_toolkit_install.info").write_text("package_name=t\nversion=8.2.RC1\n")
    empty.environ["ASCEND_HOME_PATH"] = "/opt/cann"
    return empty


def test_npus_are_found_and_described(ascend: Machine) -> None:
    probe = ascend.probe()
    assert (probe.available, probe.devices, probe.reason) == (True, 2, "2 x Ascend 910B3")
    evidence = "\n".join(probe.evidence)
    for text in (
        "/dev/davinci0, /dev/davinci1",
        "24.1.rc2",
        "CANN 8.2.RC1 in /opt/cann",
        "NPU 1 is 910B3, Warning",
        "import torch_npu in a child process: torch_npu 2.13.0",
    ):
        assert text in evidence
    assert "manager" not in evidence


def test_versions(ascend: Machine) -> None:
    versions = ascend.backend().versions()
    assert versions["driver"] == "24.1.rc2"
    assert versions["CANN"] == "8.2.RC1"


def test_an_installed_torch_npu_is_no_evidence(empty: Machine) -> None:
    probe = empty.probe()
    assert not probe.available
    assert "no Ascend NPU" in probe.reason
    assert any("which is not evidence" in line for line in probe.evidence)
    assert empty.asked == [], "without device files nothing may be started or imported"


def test_a_driver_without_devices_is_a_container_without_them(empty: Machine) -> None:
    (empty.root / "dev/davinci_manager").touch()
    probe = empty.probe()
    assert not probe.available
    assert "docker run --device /dev/davinci0" in str(probe.remedy)


@pytest.mark.parametrize(
    ("torch", "torch_npu", "reason", "remedy"),
    [
        (None, None, "torch is not installed", "pip install torch torch-npu"),
        (CPU_TORCH, None, "torch_npu is not installed", "pip install torch-npu==2.13.0"),
        (CUDA_TORCH, None, "torch_npu is not installed", "pip install torch-npu==2.13.0"),
        (CUDA_TORCH, "2.13.0", "aborts the process", "pip install torch==2.13.0+cpu"),
    ],
)
def test_what_cannot_work_is_said_before_it_is_tried(
    ascend: Machine,
    torch: TorchBuild | None,
    torch_npu: str | None,
    reason: str,
    remedy: str,
) -> None:
    ascend.torch, ascend.torch_npu = torch, torch_npu
    probe = ascend.probe()
    assert not probe.available
    assert probe.reason.startswith("2 x Ascend 910B3, but ")
    assert reason in probe.reason
    assert remedy in str(probe.remedy)
    assert "import" not in ascend.asked


def test_a_broken_torch_npu_is_said_with_its_error(ascend: Machine) -> None:
    ascend.check = ImportCheck(None, "ImportError: libhccl.so: cannot open shared object file")
    probe = ascend.probe()
    assert not probe.available
    assert "libhccl.so" in probe.reason
    assert "set_env.sh" in str(probe.remedy)
    del ascend.environ["ASCEND_HOME_PATH"]
    assert "install CANN" in str(ascend.probe().remedy)


def test_npu_smi_may_be_missing_or_stuck(ascend: Machine) -> None:
    ascend.smi = NpuSmi(problem="no answer in 10 s")
    probe = ascend.probe()
    assert probe.available
    assert probe.reason == "2 x Ascend NPU"
    assert "npu-smi: no answer in 10 s" in probe.evidence


@pytest.mark.parametrize("value", ["", "-1", "9"])
def test_hidden_npus_are_not_available(ascend: Machine, value: str) -> None:
    ascend.environ["ASCEND_RT_VISIBLE_DEVICES"] = value
    probe = ascend.probe()
    assert (probe.available, probe.devices) == (False, 0)
    assert f"hidden by ASCEND_RT_VISIBLE_DEVICES={value!r}" in probe.reason


def test_the_table_of_npu_smi() -> None:
    assert parse_npu_smi(TABLE) == ((0, "910B3", "OK"), (1, "910B3", "Warning"))
    assert parse_npu_smi("another format") == ()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            f"cat <<'END'\n{TABLE}END",
            NpuSmi(
                ((0, "910B3", "OK"), (1, "910B3", "Warning")),
                memory=((62225 << 20, 65536 << 20),) * 2,
            ),
        ),
        ("echo 'dcmi module initialize failed' >&2; exit 9", "exit status 9: dcmi module"),
        ("sleep 5", "no answer in 0.2 s"),
    ],
)
def test_running_npu_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: NpuSmi | str
) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    limit = 0.2 if script.startswith("sleep") else 10
    monkeypatch.setattr(_tools, "NPU_SMI_SECONDS", limit)
    answer = ask_npu_smi()
    if isinstance(expected, NpuSmi):
        assert answer == expected
    else:
        assert expected in str(answer.problem)


FAKE_TORCH = "class npu:\n    device_count = staticmethod(lambda: 2)\n"


@pytest.mark.parametrize(
    ("torch_npu", "devices", "detail"),
    [
        ("print('banner'); __version__ = '9.9'", 2, "torch_npu 9.9"),
        ("raise ImportError('libhccl.so: cannot open')", None, "ImportError: libhccl.so"),
        ("import os; os.abort()", None, "killed by signal 6"),
        (
            "import os; assert os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] == '0'; 1 / 0",
            None,
            "Zero",
        ),
        ("import time; time.sleep(60)", None, "did not finish in 3 s"),
    ],
)
def test_importing_torch_npu_in_a_child_process(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    torch_npu: str,
    devices: int | None,
    detail: str,
) -> None:
    site.install("fakes", {"torch": FAKE_TORCH, "torch_npu": torch_npu})
    monkeypatch.setenv("PYTHONPATH", str(site.directory))
    monkeypatch.setattr(_tools, "IMPORT_SECONDS", 3)
    check = import_torch_npu()
    assert check.devices == devices
    assert detail in check.detail
    assert "torch_npu" not in sys.modules


def test_the_device_is_torch_npu_with_hccl(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = types.ModuleType("torch.npu")
    monkeypatch.setattr("torch.npu", npu, raising=False)
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    spec = AscendBackend().device()
    assert (spec.type, spec.communication_backend) == ("npu", "hccl")
    npu.NPUGraph = npu.synchronize = object()  # type: ignore[attr-defined]
    assert spec.module.CUDAGraph is spec.module.synchronize is npu.synchronize
    assert (spec.pinned_memory, spec.tensor_type) == (True, "torch.npu")


def test_memory_of_the_devices_that_a_process_may_use(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / f"dev/davinci{number}").touch()
    smi = NpuSmi(parse_npu_smi(TABLE), memory=((10, 40), (20, 40)))
    environ = {"ASCEND_RT_VISIBLE_DEVICES": "1"}
    probe = AscendProbe(root=tmp_path, emulated=False, environ=environ, npu_smi=lambda: smi)
    assert AscendBackend(probe).memory() == (Memory(20, 40),)
