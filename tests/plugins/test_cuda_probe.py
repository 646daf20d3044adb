"""The CUDA probe, with a file system and an NVML of the test's own."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.backends._torch_build import TorchBuild, installed_torch
from accel_bridge.backends.cuda import _nvml, _nvml_child
from accel_bridge.backends.cuda._backend import CudaBackend
from accel_bridge.backends.cuda._nvml import Gpu, NvmlAnswer, NvmlError, ask_nvml, parse_answer
from accel_bridge.backends.cuda._probe import CudaProbe
from accel_bridge.backends.cuda._visible import visible_names
from accel_bridge.device.backend import Probe

H100 = [Gpu("NVIDIA H100", f"GPU-{index}aaa", 80 * 2**30, (9, 0)) for index in range(4)]
CUDA_TORCH = TorchBuild("2.13.0+cu130", "13.0")
MIG = "MIG-1c2d"


def answers(gpus: Sequence[Gpu] = H100, driver: str = "580.65") -> NvmlAnswer:
    """What NVML says."""
    return NvmlAnswer(driver, tuple(gpus), frozenset({MIG}))


def run(
    root: Path,
    nvml: NvmlAnswer | Exception,
    build: TorchBuild | None = CUDA_TORCH,
    **environ: str,
) -> Probe:
    def ask(uuids: Sequence[str]) -> NvmlAnswer:
        if isinstance(nvml, Exception):
            raise nvml
        return replace(nvml, known=nvml.known & set(uuids))

    probe = CudaProbe(root, environ, ask, lambda: build)
    return CudaBackend(probe).probe()


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A root with the files of an NVIDIA driver."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 580.65\nGCC version\n")
    return tmp_path


def test_gpus_are_found_and_described(driver: Path) -> None:
    probe = run(driver, answers())
    assert (probe.available, probe.devices, probe.reason) == (True, 4, "4 x NVIDIA H100")
    evidence = "\n".join(probe.evidence)
    for text in (
        "/dev/nvidia0",
        "NVRM version: 580.65",
        "80 GiB",
        "capability 9.0",
        "2.13.0+cu130",
    ):
        assert text in evidence
    assert "nvidiactl" not in evidence


def test_nothing_there(tmp_path: Path) -> None:
    probe = run(tmp_path, OSError("libnvidia-ml.so.1: cannot open"))
    assert (probe.available, probe.devices) == (False, 0)
    assert "no NVIDIA driver" in probe.reason
    assert "cannot open" in probe.evidence[-1]


def test_device_files_without_the_library(driver: Path) -> None:
    probe = run(driver, OSError("libnvidia-ml.so.1: cannot open"))
    assert not probe.available
    assert "cannot be loaded" in probe.reason
    assert "--gpus all" in str(probe.remedy)


def test_wsl_has_no_device_files_and_is_found_by_nvml(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    probe = run(tmp_path, answers(H100[:1]))
    assert (probe.available, probe.devices) == (True, 1)
    assert "WSL" in probe.evidence[0]


@pytest.mark.parametrize("value", ["", "-1", "none", "7"])
def test_hidden_gpus_are_not_available(driver: Path, value: str) -> None:
    probe = run(driver, answers(), CUDA_VISIBLE_DEVICES=value)
    assert (probe.available, probe.devices) == (False, 0)
    assert f"hidden by CUDA_VISIBLE_DEVICES={value!r}" in probe.reason
    assert probe.remedy == "unset CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 4),
        ("0", 1),
        ("3,1", 2),
        (" 0 , 1 ", 2),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("0,0", 0),
        ("0,GPU-0aaa", 0),
        ("GPU-2", 1),
        ("GPU-", 0),
        ("GPU-9", 0),
        (MIG, 1),
        (f"{MIG},0", 1),
        (f"0,{MIG}", 1),
        ("MIG-unknown", 0),
    ],
)
def test_visible_devices_are_read_as_cuda_does(value: str | None, count: int) -> None:
    assert len(visible_names(value, H100, {MIG})) == count


def test_torch_without_cuda_is_said_with_the_command(driver: Path) -> None:
    probe = run(driver, answers(), TorchBuild("2.13.0+cpu", None))
    assert not probe.available
    assert "torch 2.13.0+cpu is built without CUDA" in probe.reason
    assert "pip install --force-reinstall torch==2.13.0" in str(probe.remedy)


def test_no_torch_is_said_with_the_command(driver: Path) -> None:
    probe = run(driver, answers(), None)
    assert not probe.available
    assert probe.remedy == "pip install torch"


def test_a_driver_older_than_torch_is_noted(driver: Path) -> None:
    probe = run(driver, answers(driver="550.54.15"))
    assert probe.available
    assert "driver 550.54.15 is older than 580, which CUDA 13.0 needs" in probe.reason
    assert "older" not in run(driver, answers(driver="580.65")).reason
    unknown = run(driver, answers(driver="550.54.15"), TorchBuild("9.0+cu990", "99.0"))
    assert "older" not in unknown.reason


def test_what_the_backend_promises() -> None:
    backend = CudaBackend()
    assert backend.device() is None
    assert backend.features.torch_compile
    assert backend.environment()["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert (backend.name, backend.priority) == ("cuda", 20)
    assert backend.versions()["driver"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\n", CUDA_TORCH),
        (
            "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n",
            TorchBuild("2.13.0+cpu", None),
        ),
        ("__version__ = '2.6.0'\ncuda = '12.4'\nhip = None\n", TorchBuild("2.6.0", "12.4")),
        (None, TorchBuild("unknown", None)),
    ],
)
def test_the_build_of_torch_is_read_from_its_file(
    tmp_path: Path, text: str | None, expected: TorchBuild
) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    assert installed_torch(lambda name: spec) == expected
    assert installed_torch(lambda name: None) is None


Text = ctypes.Array[ctypes.c_char]


class FakeLibrary:
    """libnvidia-ml with one GPU that does not tell its memory; counts open sessions."""

    class nvmlErrorString:
        def __new__(cls, code: int) -> bytes:  # type: ignore[misc]
            return f"error {code}".encode()

    def __init__(self) -> None:
        self.sessions = 0

    def nvmlInit_v2(self) -> int:
        self.sessions += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.sessions -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Text, size: object) -> int:
        buffer.value = b"580.65"
        return 0

    def nvmlDeviceGetCount_v2(self, value: object) -> int:
        value._obj.value = 1  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: object) -> int:
        return 0 if index == 0 else 2

    def nvmlDeviceGetCudaComputeCapability(
        self, handle: object, major: object, minor: object
    ) -> int:
        major._obj.value, minor._obj.value = 12, 1  # type: ignore[attr-defined]
        return 0

    def nvmlDeviceGetName(self, handle: object, buffer: Text, size: object) -> int:
        buffer.value = b"NVIDIA GB10"
        return 0

    def nvmlDeviceGetUUID(self, handle: object, buffer: Text, size: object) -> int:
        buffer.value = b"GPU-abc"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: object, memory: object) -> int:
        return 3

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:
        return 0 if uuid == b"MIG-1" else 6


def test_the_calls_of_nvml() -> None:
    found = _nvml_child.answer(FakeLibrary(), ["MIG-1", "MIG-2"])  # type: ignore[arg-type]
    gpu = Gpu("NVIDIA GB10", "GPU-abc", None, (12, 1))
    expected = NvmlAnswer("580.65", (gpu,), frozenset({"MIG-1"}))
    assert parse_answer(json.loads(json.dumps(found))) == expected


@pytest.mark.parametrize(
    ("function", "code"), [("nvmlInit_v2", 9), ("nvmlDeviceGetHandleByIndex_v2", 15)]
)
def test_an_error_of_nvml_carries_function_code_and_text(function: str, code: int) -> None:
    library = FakeLibrary()
    setattr(library, function, lambda *arguments: code)
    found = _nvml_child.answer(library, [])  # type: ignore[arg-type]
    with pytest.raises(NvmlError, match=rf"{function}: error {code} \(NVML code {code}\)"):
        parse_answer(found)


@pytest.mark.parametrize(
    ("child", "error", "text"),
    [
        ('print(\'{"missing": "libnvidia-ml.so.1"}\')', OSError, "libnvidia-ml.so.1"),
        ("import os; os.abort()", NvmlError, "exit status -6"),
        ("raise RuntimeError('odd')", NvmlError, "RuntimeError: odd"),
        ("import time; time.sleep(60)", NvmlError, "no answer in 0.5 s"),
    ],
)
def test_a_child_process_that_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    child: str,
    error: type[Exception],
    text: str,
) -> None:
    (tmp_path / "child.py").write_text(child)
    monkeypatch.setattr(_nvml, "_CHILD", tmp_path / "child.py")
    monkeypatch.setattr(_nvml, "SECONDS", 0.5 if "sleep" in child else 30)
    with pytest.raises(error, match=text):
        ask_nvml()


def test_the_child_process_runs_and_prints_one_document(python: Python) -> None:
    done = python("-I", "-S", _nvml_child.__file__, "MIG-none")
    assert done.returncode == 0, done.stderr
    # What it says depends on the machine: the driver, the missing library, or NVML's error.
    assert {"driver", "missing", "code"} & set(json.loads(done.stdout))


PROBE_ALL = """
import os, sys
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.bridge.selection import probe_all

probes = probe_all(load_plugins())
assert {"cuda", "ascend", "cpu"} <= {probed.backend.name for probed in probes}
loaded = {name.split(".")[0] for name in sys.modules}
for name in ("torch", "torch_npu", "megatron", "mindspeed", "transformer_engine", "numpy"):
    assert name not in loaded, f"{name} was imported"
with open("/proc/self/maps") as maps:
    assert "libcuda.so" not in maps.read(), "the CUDA driver was loaded"
assert len(os.listdir("/proc/self/task")) == 1, "a thread was left: fork is not safe"
child = os.fork()
if child == 0:
    again = probe_all(load_plugins())
    same = [p.probe.available for p in again] == [p.probe.available for p in probes]
    os._exit(0 if same else 7)
assert os.waitpid(child, 0)[1] == 0, "the probes of a forked child differ"
"""


def test_probing_imports_no_torch_loads_no_cuda_and_may_fork(python: Python) -> None:
    done = python("-c", PROBE_ALL)
    assert done.returncode == 0, done.stderr


def test_that_check_can_fail(python: Python) -> None:
    imported = "import sys, types; sys.modules['torch'] = types.ModuleType('torch')"
    done = python("-c", f"{imported}\n{PROBE_ALL}")
    assert "torch was imported" in done.stderr
