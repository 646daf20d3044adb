"""The repository's files, and a copy of them that may be built in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]

#: What a source distribution holds besides those directories and docs/.
FILES: Final = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "README.zh-CN.md",
    "SECURITY.md",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
)

#: Calls the hook of a build as pip does.
_BUILD: Final = "import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"

#: Directory in the repository -> where its modules are in an installation.
DIRECTORIES: Final = {
    "accel_bridge": "accel_bridge",
    "backends": "accel_bridge/backends",
    "patches": "accel_bridge/patches",
    "pretrain": "accel_bridge/pretrain",
}
#: All that a build reads.
SOURCES: Final = (*DIRECTORIES, "docs", *FILES, "MANIFEST.in")


def pyproject() -> dict[str, Any]:
    """pyproject.toml (Python 3.10, where some of these tests run, has no tomllib)."""
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def copy_sources(directory: Path, names: Iterable[str] = SOURCES) -> None:
    """Copy what a build needs, so that it leaves nothing in the repository."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    directory.mkdir(exist_ok=True)
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, directory)


def installed_names() -> set[str]:
    """Every module, table and C++ source of the repository, by its path in an installation."""
    return {
        f"{package}/{path.relative_to(ROOT / directory).as_posix()}"
        for directory, package in DIRECTORIES.items()
        for path in (ROOT / directory).rglob("*")
        if path.suffix in (".py", ".json", ".cpp", ".h")
    }


def build(kind: str, sources: Path, directory: Path) -> Path:
    """Build a ``wheel`` or ``sdist`` with the setuptools that is installed."""
    directory.mkdir()
    command = [sys.executable, "-c", _BUILD.format(kind=kind), str(directory)]
    done = subprocess.run(
        command, cwd=sources, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = directory.iterdir()
    return built
