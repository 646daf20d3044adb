"""Which Megatron is found: two of them, an editable one, forks that say their version otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel_bridge.patches import _installed
from accel_bridge.patches._factory import REFERENCE
from accel_bridge.process import log

NUMBERS = "MAJOR = 0\nMINOR = {}\nPATCH = 1\nPRE_RELEASE = '{}'\n"


def checkout(
    directory: Path, source: str, *portions: str, file: str = "core/package_info.py"
) -> Path:
    """A directory with ``megatron``, as a namespace package."""
    for portion in ("core", *portions):
        (directory / "megatron" / portion).mkdir(parents=True)
        (directory / "megatron" / portion / "__init__.py").touch()
    (directory / "megatron" / file).write_text(source)
    return directory


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said and warned."""
    lines: list[str] = []
    monkeypatch.setattr(log, "_write", lines.append)
    log.warn_once.cache_clear()
    return lines


def alone(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    """Only these directories hold a Megatron."""
    monkeypatch.setattr(
        _installed,
        "portions",
        lambda find=None: [directory / "megatron" for directory in directories],
    )


@pytest.mark.parametrize(
    ("source", "file", "version"),
    [
        (NUMBERS.format(12, ""), "core/package_info.py", "0.12.1"),
        (NUMBERS.format(16, "rc0"), "core/package_info.py", "0.16.1rc0"),
        (NUMBERS.format(12, "-ours/2"), "core/package_info.py", "0.12.1"),
        ("__version__ = '0.14.0+abc'", "core/__init__.py", "0.14.0+abc"),
        ("__version__ = 'v0.13-nightly'", "core/package_info.py", "0.13"),
        ("MAJOR = (", "core/package_info.py", None),
        ("MAJOR = 0", "core/package_info.py", None),
    ],
)
def test_spellings_of_a_version(
    tmp_path: Path, source: str, file: str, version: str | None
) -> None:
    directory = checkout(tmp_path, source, file=file) / "megatron"
    assert _installed.version_in(directory) == version


def test_a_fork_without_a_version_is_verified_patch_by_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    alone(monkeypatch, checkout(tmp_path, "VERSION = build()"))
    assert _installed.megatron_version() == REFERENCE
    assert "says no version" in said[0]


def test_the_first_of_two_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    new, old = (checkout(tmp_path / str(n), NUMBERS.format(n, ""), "training") for n in (19, 12))
    monkeypatch.syspath_prepend(str(old))
    monkeypatch.syspath_prepend(str(new))
    assert _installed.megatron_version() == "0.19.1"
    _installed.tell_of_several()
    (line,) = said
    assert f"megatron 0.19.1 at {new}" in line
    assert f"0.12.1 at {old}" in line


def test_two_that_are_mixed_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """An old wheel holds megatron.core alone: training would come from the checkout behind it."""
    wheel = checkout(tmp_path / "wheel", NUMBERS.format(14, ""))
    script = checkout(tmp_path / "checkout", NUMBERS.format(16, ""), "training")
    alone(monkeypatch, wheel, script)
    _installed.tell_of_several()
    (line,) = said
    assert line.startswith("warning: two Megatrons are mixed: megatron.core 0.14.1")
    assert "megatron.training of 0.16.1" in line
    said.clear()
    alone(monkeypatch, script, wheel)
    _installed.tell_of_several()
    assert not any("are mixed:" in line for line in said)


def test_one_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    same = [checkout(tmp_path / name, NUMBERS.format(16, ""), "training") for name in "ab"]
    for directories in ([], same[:1], same):
        alone(monkeypatch, *directories)
        _installed.tell_of_several()
    assert said == []


#: As setuptools installs a project in editable mode whose packages are beside other directories.
EDITABLE = """
import importlib.machinery, importlib.util, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "megatron":
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = ["__editable__.megatron_core.finder.__path_hook__"]
            return spec
        if name == "megatron.core":
            return importlib.util.spec_from_file_location(name, {core!r} + "/__init__.py")
sys.meta_path.insert(0, Finder)
from accel_bridge.patches._installed import megatron_version
print(megatron_version(), "megatron.core" in sys.modules)
"""


def test_an_editable_installation_is_found(tmp_path: Path) -> None:
    core = checkout(tmp_path, NUMBERS.format(17, "")) / "megatron" / "core"
    code = EDITABLE.format(core=str(core))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0.17.1 False\n", done.stderr
