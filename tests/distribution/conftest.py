"""The wheel, and an environment that it is installed in: made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distribution.support import ROOT, build, copy_sources


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone holds, as far as a build needs it."""
    directory = tmp_path_factory.mktemp("sources")
    copy_sources(directory)
    # setuptools takes tests along by itself.
    (directory / "tests").mkdir()
    shutil.copy(ROOT / "tests/test_journal.py", directory / "tests")
    return directory


@pytest.fixture(scope="session")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", sources, tmp_path_factory.mktemp("built") / "wheel")


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; dependencies come from the environment of the tests."""
    directory = tmp_path_factory.mktemp("fresh")
    run = {"check": True, "capture_output": True, "timeout": 120}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], **run)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], **run)
    (site_packages,) = directory.glob("lib/python3*/site-packages")
    # Paths in a .pth file are searched last and their own .pth files are not read, so the
    # editable installation of the repository stays out of sight.
    places = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "dependencies.pth").write_text("\n".join([*places, ""]))
    return directory
