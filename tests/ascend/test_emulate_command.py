"""``accel-bridge emulate-ascend``: what it needs, what it sets, and what it says when it cannot."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import warm_python

from accel_bridge.apps.testing import MODEL
from accel_bridge.backends.ascend.emulator import _build, _launch, _torch_npu
from accel_bridge.backends.ascend.emulator._launch import machine
from accel_bridge.errors import BridgeError
from ascend.conftest import Emulate


def _fake_torch_npu(directory: Path, version: str) -> Path:
    (directory / "torch_npu").mkdir(parents=True)
    (directory / "torch_npu" / "__init__.py").write_text("")
    metadata = directory / f"torch_npu-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n"
    )
    return directory


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "there is no command"),
        (["--", *[]], "there is no command"),
        (["python", "x.py"], "put -- before the command"),
        (["--device", "2", "--", "true"], "is not an option"),
        (["--devices", "0", "--", "true"], "--devices must be 1 to 8"),
        (["--devices", "9", "--", "true"], "--devices must be 1 to 8"),
        (["--memory", "much", "--", "true"], "is not a size"),
        (["--memory", "0g", "--", "true"], "is not a size"),
    ],
)
def test_a_command_line_that_makes_no_sense(words: list[str], expected: str) -> None:
    with pytest.raises(BridgeError) as error:
        _launch.main(words)
    assert expected in str(error.value)
    assert error.value.exit_code == 2


def test_no_torch_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_TORCH_NPU", str(tmp_path))
    with pytest.raises(_torch_npu.TorchNpuError) as error:
        _launch.main(["--", "true"])
    assert str(tmp_path) in str(error.value)
    assert "emulate-ascend --install" in str(error.value)


def test_torch_npu_for_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_TORCH_NPU", str(_fake_torch_npu(tmp_path, "2.1.0.post8")))
    with pytest.raises(_torch_npu.TorchNpuError) as error:
        _torch_npu.find_torch_npu(install=False)
    assert "torch_npu 2.1.0.post8 is not for torch" in str(error.value)
    assert "pip install torch==2.1.0" in str(error.value)


@pytest.mark.parametrize(
    ("command", "script", "told"),
    [
        ("bash train.sh", "torchrun pretrain_gpt.py", True),
        ("bash train.sh", "accel-bridge pretrain -- --num-layers 2", False),
        ("accel-bridge run -- bash train.sh", "torchrun pretrain_gpt.py", False),
        ("python train.sh", "import accel_bridge.auto", False),
        ("true", "", True),
    ],
)
def test_a_command_without_the_bridge_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, script: str, told: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(script)
    assert _launch._names_the_bridge(command.split(), {}) is not told
    assert _launch._names_the_bridge(command.split(), {"ACCEL_BRIDGE_AUTO": "1"})


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = _torch_npu.TorchNpu(tmp_path, "2.13.0")
    with pytest.raises(_build.BuildError, match=r"g\+\+ is missing"):
        _build.build(found)
    assert list(tmp_path.rglob("*.so")) == []


def test_sources_that_do_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel without headers: what the compiler said is shown, and nothing half-built is left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "one.cpp").write_text('#include "acl/acl.h"\n')
    monkeypatch.setattr(_build, "SOURCES", tmp_path)
    monkeypatch.setattr(_build, "LIBRARIES", _build.LIBRARIES[:1])
    found = _torch_npu.TorchNpu(tmp_path / "site", "2.13.0")
    with pytest.raises(_build.BuildError) as error:
        _build.build(found)
    assert "acl" in str(error.value)
    assert list((tmp_path / "accel_bridge" / "ascend").glob("emulator-*")) == []


def test_a_changed_source_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.cpp").write_text("int x;")
    monkeypatch.setattr(_build, "SOURCES", tmp_path)
    found = _torch_npu.TorchNpu(tmp_path, "2.13.0")
    first = _build._key(found)
    (tmp_path / "x.cpp").write_text("int y;")
    assert _build._key(found) != first
    assert _build._key(_torch_npu.TorchNpu(tmp_path, "2.12.0")) != _build._key(found)


def test_another_environment_is_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _torch_npu.TorchNpu(tmp_path, "2.13.0")
    first = _build._key(found)
    monkeypatch.setattr(_build, "_torch_directory", lambda: tmp_path)
    assert _build._key(found) != first


def test_the_emulated_machine_is_removed(tmp_path: Path) -> None:
    (tmp_path / "libascendcl.so").touch()
    with machine(2, {"lib64": tmp_path}) as root:
        assert len(list(root.glob("usr/local/Ascend/*/latest/lib64/libascendcl.so"))) == 1
        assert sorted(path.name for path in (root / "dev").glob("davinci[0-9]")) == [
            "davinci0",
            "davinci1",
        ]
    assert not root.exists()
    assert (tmp_path / "libascendcl.so").exists()


def test_exit_status_and_environment(emulate: Emulate) -> None:
    code = (
        "import os, sys; print(sorted(n for n in os.environ if n.startswith('ASCEND'))); "
        "print('memory', os.environ['ASCEND_EMULATOR_MEMORY']); sys.exit(7)"
    )
    done = emulate("-c", code, devices=2, memory="1g")
    assert done.returncode == 7
    assert "[EMULATED Ascend] 2 device(s) of 1g" in done.output
    assert "memory 1073741824" in done.output
    assert "ASCEND_HOME_PATH" in done.output


def test_the_backend_is_found_and_says_that_it_is_emulated(emulate: Emulate) -> None:
    done = emulate("-m", "accel_bridge", "backends", "--json", devices=2)
    report = json.loads(done.output[done.output.index("{") :])
    found = next(row for row in report["backends"] if row["name"] == "ascend")
    assert found["available"]
    assert found["devices"] == 2
    assert "EMULATED" in found["reason"]
    assert "EMULATED" in found["title"]
    assert report["chosen"] == "ascend" or "ascend" in json.dumps(report["chosen"])


#: A model and a way of training that take Megatron through every patch that an NPU needs.
TRAINING = """
--swiglu --normalization RMSNorm --position-embedding-type rope --bf16 --use-cpu-initialization
--exit-signal-handler --train-iters 2 --lr-decay-iters 2
""".split()
#: What an NPU needs that the CPU does not, and the kernels of torch_npu.
ON_AN_NPU = "swiglu signal-device host-initialization parameter-copy".split()


def test_every_patch_is_reached_or_says_why_not(emulate: Emulate, tmp_path: Path) -> None:
    """Upstream leaves a model that is initialized on the host there, where its optimizer fails."""
    script = Path(__file__).parents[2] / "pretrain" / "pretrain_gpt.py"
    python = warm_python.interpreter(emulated=True)
    words = [python, "-m", "accel_bridge", "patches", "--json", str(script)]
    found = tmp_path / "patches.json"
    done = emulate("sh", "-c", f"{shlex.join([*words, *MODEL, *TRAINING])} > {found}")
    assert done.returncode == 0, done.output[-6000:]
    report = json.loads(found.read_text())
    assert report["backend"] == "ascend"
    states = {patch["id"]: patch["state"] for patch in report["patches"]}
    # Those of a tool's own module and of vLLM wait for it.
    targets = {patch["id"]: patch["target"].partition(":")[0] for patch in report["patches"]}
    tools = {id for id, module in targets.items() if "." not in module or module[:5] == "vllm."}
    assert {states[id] for id in states.keys() - tools} <= {"applied", "reached", "skipped"}, states
    assert {states[id] for id in tools} <= {"registered", "skipped"}, states
    assert {id: states[id] for id in ON_AN_NPU} == dict.fromkeys(ON_AN_NPU, "reached")
    assert all(p["reason"] for p in report["patches"] if p["state"] == "skipped")


def test_torchair_loads_and_says_that_graphs_are_not_emulated(emulate: Emulate) -> None:
    """MindSpeed imports it: its libraries want GE's functions, and one more library."""
    code = (
        "import torch, torch_npu, torchair; from torchair.core import _npu_graph_executor\n"
        "torchair.get_npu_backend(); f = torch.compile(lambda x: x + 1, backend='npu')\n"
        "f(torch.ones(2, device='npu'))"
    )
    done = emulate("-c", code, warm=True)
    assert done.returncode != 0
    assert "CANN's graph engine is not emulated" in done.output


def test_the_warm_python_sees_the_machine_that_it_runs_on(emulate: Emulate) -> None:
    """It has torch_npu, and sees the machine of the command that it runs under."""
    code = """
import sys
print('accel_bridge' in sys.modules, 'torch_npu' in sys.modules)
import torch
sum = torch.ones(3, device='npu:2').sum().item()
print(torch.npu.device_count(), torch.npu.get_device_properties(0).total_memory >> 20, sum)
"""
    python = warm_python.interpreter(emulated=True)
    ended = emulate(python, "-c", code, devices=3, memory="64m", OMP_NUM_THREADS="1")
    assert "\nFalse True\n" in ended.output
    assert ended.output.endswith("\n3 64 3.0\n"), ended.output
