"""A machine with NPUs, which tests break."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_machine import Injected

from accel_bridge.backends.ascend.checks import CANN_LIBRARIES


@pytest.fixture
def ascend(tmp_path: Path) -> Injected:
    """Two NPUs with CANN 8.5, a driver for it, and torch_npu."""
    injected = Injected(tmp_path / "injected", backend="ascend", devices=2)
    injected.torch("2.9.0+cpu")
    injected.package("torch-npu", "2.9.0", {"torch_npu/__init__.py": ""})
    home = "/usr/local/Ascend/ascend-toolkit/latest"
    injected.file(f"{home}/compiler/version.info", "Version=8.5.0\n")
    injected.file(f"{home}/opp/version.info", "Version=8.5.0\n")
    for library in CANN_LIBRARIES:
        injected.file(f"{home}/lib64/{library}")
    injected.file(
        "/usr/local/Ascend/driver/version.info",
        "Version=25.3.rc1\ncompatible_version_fw=[7.0.0,7.8.99]\n",
    )
    injected.file("/usr/local/Ascend/firmware/version.info", "Version=7.7.0.6.236\n")
    injected.file("/usr/local/Ascend/driver/lib64/driver/libascend_hal.so")
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        injected.file(f"/dev/{name}")
    injected.environ = {"ASCEND_HOME_PATH": home, "ASCEND_OPP_PATH": f"{home}/opp"}
    table = "\n".join(f"| {n}     910B3               | OK            | 90 |" for n in (0, 1))
    injected.program("npu-smi", f"cat <<'END'\n{table}\nEND")
    modules = ("attr", "cloudpickle", "decorator", "ml_dtypes", "numpy", "psutil", "scipy")
    for module in (*modules, "sympy", "tornado", "absl"):
        injected.package(f"fake-{module}", "1", {f"{module}/__init__.py": ""})
    return injected
