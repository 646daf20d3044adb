"""The wheel and the source distribution hold everything, and an installed wheel works."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from accel_bridge import __version__
from distribution.support import DIRECTORIES, FILES, ROOT, build, installed_names


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_module_and_nothing_else(wheel: Path) -> None:
    modules = {name for name in names(wheel) if ".dist-info/" not in name}
    start = "accel_bridge_auto.pth"
    others = {"accel_bridge/py.typed", start, f"accel_bridge/process/bootstrap/{start}"}
    others.add("accel_bridge_start.py")
    assert modules == {*installed_names(), *others}


@pytest.mark.slow
def test_the_source_distribution_is_whole_and_makes_the_same_wheel(
    sources: Path, wheel: Path, tmp_path: Path
) -> None:
    """It has what a user reads, and no tests."""
    with tarfile.open(build("sdist", sources, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
        held = {name.partition("/")[2] for name in archive.getnames()}
    # Who typed the tutorial of a backend's package has its build directory there.
    docs = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.*")
        if path.is_file() and "build" not in path.parts and ".egg-info" not in path.parent.name
    }
    assert {*FILES, *docs} <= held
    made = {"MANIFEST.in", "PKG-INFO", "setup.cfg", "accel_bridge.egg-info", ""}
    assert {name.partition("/")[0] for name in held} == {*FILES, *DIRECTORIES, "docs", *made}
    again = build("wheel", tmp_path / f"accel_bridge-{__version__}", tmp_path / "wheel")
    assert names(again) == names(wheel)


def test_its_parts_are_imported_from_the_installation(installed: Path, tmp_path: Path) -> None:
    code = """
import accel_bridge.backends.cpu, accel_bridge.patches, accel_bridge.pretrain, importlib.util
for module in (accel_bridge.backends.cpu, accel_bridge.patches, accel_bridge.pretrain):
    print(module.__file__)
for name in ("backends", "patches", "pretrain"):
    assert importlib.util.find_spec(name) is None, name
"""
    command = [installed / "bin/python", "-c", code]
    shown = subprocess.check_output(command, cwd=tmp_path, text=True, timeout=60).split()
    assert len(shown) == 3
    assert all(path.startswith(str(installed)) for path in shown)


#: Its own text raises what NVIDIA's does without a compiled part, or it is whole.
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "raise RuntimeError('Found empty ... meta package installed.')",
            "ModuleNotFoundError absent",
        ),
        ("raise RuntimeError('a fault of its own')", "RuntimeError"),
        ("__version__ = '2.99'", "2.99 SourceFileLoader"),
    ],
)
def test_without_the_bridge_an_empty_transformer_engine_is_absent(
    installed: Path, tmp_path: Path, content: str, said: str
) -> None:
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text(content)
    code = """
try:
    import transformer_engine as te
    print(te.__version__, type(te.__loader__._own).__name__)
except ImportError as error:
    print(type(error).__name__, "absent" if "accel-bridge run" in str(error) else error)
except Exception as error:
    print(type(error).__name__)
"""
    command = [installed / "bin/python", "-c", code]
    shown = subprocess.check_output(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, text=True, timeout=60
    )
    assert shown.strip() == said
