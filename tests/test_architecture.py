"""The layers of the project, and its import time."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from architecture import LAYERS, MAX_LINES, circles, root_entries, too_long, violations
from plugin_site import Python

from accel_bridge import plugin

ROOT = Path(__file__).parents[1]

#: (module, what it imports) -> why it may.
ALLOWED = {
    ("accel_bridge.process.bootstrap.accel_bridge_hook", name): (
        "the hook stands in the path of every Python and runs by itself: what it starts is above it"
    )
    for name in ("accel_bridge.bridge.child", "accel_bridge.bridge.child.activate_here")
}


def test_every_module_imports_from_below() -> None:
    assert violations(ROOT, frozenset(ALLOWED)) == []


def test_every_exception_is_still_needed() -> None:
    assert set(violations(ROOT)) == {f"{module} imports {name}" for module, name in ALLOWED}


def test_every_entry_of_the_root_has_its_layer() -> None:
    entries = root_entries(ROOT)
    assert len(entries) <= 16
    layered = {name for layer in LAYERS for name in layer} - {"backends", "patches", "pretrain"}
    assert {name.removesuffix(".py") for name in entries} - {"__init__", "py.typed"} == layered


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("accel_bridge/device/x.py", "import megatron.core"),
        ("accel_bridge/bridge/x.py", "def f():\n    import torch_npu"),
        ("accel_bridge/device/x.py", "from accel_bridge.backends.cpu import plugin"),
        ("accel_bridge/device/x.py", "from ..patching import records"),
        ("accel_bridge/kernels/x.py", "from accel_bridge import device"),
        ("accel_bridge/bridge/x.py", "from accel_bridge.kernels._contract import Contract"),
        ("accel_bridge/libraries/x.py", "from accel_bridge.bridge import activation"),
        ("accel_bridge/apps/x.py", "NAME = 'accel_bridge.pretrain.preprocess:main'"),
        ("accel_bridge/errors.py", "import accel_bridge.process.log"),
        ("backends/cpu/x.py", "from megatron.core import parallel_state"),
        ("backends/x.py", "import accel_bridge.patches"),
        ("patches/x.py", "try:\n    import transformer_engine.pytorch\nexcept ImportError: pass"),
        ("pretrain/preprocess/x.py", "from ...patches import norm"),
    ],
)
def test_an_injected_violation_is_found(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path)


def test_no_modules_import_one_another() -> None:
    """Not in functions nor for type checkers either."""
    assert circles(ROOT) == []


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
def test_an_injected_circle_is_found(tmp_path: Path, back: str) -> None:
    directory = tmp_path / "accel_bridge" / "x"
    directory.mkdir(parents=True)
    for name, source in {
        "__init__": "from accel_bridge.x.a import name",
        "a": "from accel_bridge.x import b\nname = 1",
        "b": back,
        "c": "from accel_bridge.x import a, b",
    }.items():
        (directory / f"{name}.py").write_text(source)
    assert circles(tmp_path) == [
        "accel_bridge.x.a -> accel_bridge.x.b",
        "accel_bridge.x.b -> accel_bridge.x.a",
    ]
    (directory / "b.py").write_text("import torch")
    assert circles(tmp_path) == []


def test_no_module_is_too_long(tmp_path: Path) -> None:
    assert too_long(ROOT) == []
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches/x.py").write_text("x = 1\n" * (MAX_LINES + 1))
    assert too_long(tmp_path) == [f"patches/x.py has {MAX_LINES + 1} lines"]


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
