"""The layers of the project, its import time, and its list of packages."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from architecture import (
    APPS,
    BACKENDS,
    MAX_LINES,
    PATCHES,
    PRETRAIN,
    circles,
    imports,
    is_within,
    packages_in_pyproject,
    packages_on_disk,
    too_long,
    violations,
)
from plugin_site import Python

from accel_bridge import plugin

ROOT = Path(__file__).parents[1]

#: Documented exceptions: (file, what it may name or import), each with its reason.
ALLOWED = {
    ("accel_bridge/__main__.py", APPS): "`python -m accel_bridge` is the command line",
}


def test_no_part_imports_what_it_must_not_know() -> None:
    assert violations(ROOT, frozenset(ALLOWED)) == []


def test_every_exception_is_still_needed() -> None:
    needed = {line.split(" imports ")[0] for line in violations(ROOT)}
    assert {name for name, _ in ALLOWED} == needed


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("accel_bridge/x.py", "import megatron.core"),
        ("accel_bridge/x.py", "def f():\n    import torch_npu"),
        ("accel_bridge/device/x.py", f"from {BACKENDS}.cpu import plugin"),
        ("accel_bridge/device/x.py", "from ..backends import cpu"),
        ("accel_bridge/x.py", "from . import patches"),
        (
            "accel_bridge/apps/cli/x.py",
            f"import importlib\nimportlib.import_module('{PRETRAIN}.x')",
        ),
        ("accel_bridge/apps/plugin.py", f"COMMAND = ('preprocess', '{PRETRAIN}.preprocess:main')"),
        ("backends/cpu/x.py", "from megatron.core import parallel_state"),
        ("backends/x.py", f"from accel_bridge import patches\nimport {PATCHES}"),
        ("patches/x.py", "from accel_bridge.backends.cuda import plugin"),
        ("patches/x.py", "try:\n    import transformer_engine.pytorch\nexcept ImportError: pass"),
        ("pretrain/preprocess/x.py", "from ...patches import norm"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    found = violations(tmp_path)
    assert found
    assert all(line.startswith(f"{file} imports ") for line in found)
    assert violations(tmp_path, frozenset((file, name) for name in _all_names(found))) == []


def _all_names(found: list[str]) -> set[str]:
    """Each imported name and all its parents."""
    names = set()
    for line in found:
        parts = line.split(" imports ")[1].split(".")
        names |= {".".join(parts[: count + 1]) for count in range(len(parts))}
    return names


def test_what_is_allowed_is_not_reported(tmp_path: Path) -> None:
    for file, source in {
        "accel_bridge/x.py": "import torch\nfrom accel_bridge._backend import Backend",
        "backends/cuda/x.py": "import transformer_engine\nfrom . import _probe",
        "patches/x.py": "import megatron.core\nfrom accel_bridge.patching import Patch",
        "pretrain/x.py": "import megatron.training\nimport accel_bridge.auto",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(source)
    assert violations(tmp_path) == []


def test_no_modules_import_one_another() -> None:
    """Not in functions nor for type checkers either. The one circle that is left goes with its
    file, which the library stand-ins replace."""
    assert [line for line in circles(ROOT) if "extra_state" not in line] == []


@pytest.mark.parametrize(
    "back",
    [
        "import accel_bridge.x.a",
        "from accel_bridge.x import a",
        "from .a import name",
        "def f():\n    from accel_bridge.x.a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .a import Name",
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, back: str) -> None:
    folder = tmp_path / "accel_bridge" / "x"
    folder.mkdir(parents=True)
    for name, source in {
        "__init__": "from accel_bridge.x.a import name",
        "a": "from accel_bridge.x import b\nname = 1",
        "b": back,
        "c": "from accel_bridge.x import a, b",
    }.items():
        (folder / f"{name}.py").write_text(source)
    assert circles(tmp_path) == [
        "accel_bridge.x.a -> accel_bridge.x.b",
        "accel_bridge.x.b -> accel_bridge.x.a",
    ]
    (folder / "b.py").write_text("import torch")
    assert circles(tmp_path) == []


def test_the_device_layer_takes_nothing_from_the_patch_engine() -> None:
    for path in (ROOT / "accel_bridge/device").glob("*.py"):
        for module in imports(path.read_text(encoding="utf-8"), "accel_bridge.device"):
            assert not is_within(module, "accel_bridge.patching"), f"{path.name} imports {module}"


def test_no_module_is_too_long(tmp_path: Path) -> None:
    assert too_long(ROOT) == []
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/x.py").write_text("x = 1\n" * (MAX_LINES + 1))
    assert too_long(tmp_path) == [f"patches/x.py has {MAX_LINES + 1} lines"]


def test_pyproject_lists_the_packages_on_disk() -> None:
    assert packages_in_pyproject(ROOT) == packages_on_disk(ROOT)


IMPORT = """
import sys, time
start = time.process_time()
import accel_bridge
print(time.process_time() - start)
heavy = {"torch", "numpy", "megatron", "torch_npu", "rich"} & set(sys.modules)
assert not heavy, f"imported {heavy}"
assert accel_bridge.hookimpl and accel_bridge.Backend and accel_bridge.BridgeError
assert "torch" not in sys.modules, "a name of accel_bridge imported torch"
"""


def test_import_accel_bridge_is_quick_and_imports_no_torch(
    python: Python, record_property: pytest.RecordProperty
) -> None:
    seconds = []
    for _ in range(5):
        done = python("-c", IMPORT)
        assert done.returncode == 0, done.stderr
        seconds.append(float(done.stdout))
    median = statistics.median(seconds)
    record_property("import_seconds", median)
    # Processor time: 0.03 s. Wall time says little on a machine that does other things.
    assert median < 0.1, f"import accel_bridge took {seconds}"


PUBLIC = """
import sys
from accel_bridge import plugin
names = set(plugin.__all__) - {"Kernel", "Kernels"}
assert all(getattr(plugin, name) for name in names)
assert "torch" not in sys.modules, "a name of accel_bridge.plugin imported torch"
try:
    plugin.Kernle
except AttributeError as error:
    assert "Kernle" in str(error)
else:
    raise SystemExit("a misspelt name was found")
"""


def test_the_public_plugin_module_imports_no_torch(python: Python) -> None:
    done = python("-c", PUBLIC)
    assert done.returncode == 0, done.stderr


def test_the_public_plugin_module_has_the_kernels_too() -> None:
    """Those two import torch, when they are asked for."""
    from accel_bridge import kernels

    assert plugin.Kernel is kernels.Kernel
    assert plugin.Kernels is kernels.Kernels


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["plugins"], ["backends"]])
def test_commands_that_look_import_no_torch(python: Python, command: list[str]) -> None:
    code = f"""
import sys
from accel_bridge.apps.cli.main import main
status = main({command!r})
assert status == 0, status
heavy = {{"torch", "megatron"}} & set(sys.modules)
assert not heavy, f"imported {{heavy}}"
"""
    done = python("-c", code, ACCEL_BRIDGE_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
