"""The Makefile's targets, and how a Python is found or asked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distribution.support import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def machine(tmp_path: Path) -> Run:
    """Runs make_venv.sh on a machine whose PATH and home hold what the test puts there."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "home").mkdir()
    for name in ("sh", "rm"):
        (programs / name).symlink_to(str(shutil.which(name)))

    def run(*words: str, pythons: dict[str, str]) -> subprocess.CompletedProcess[str]:
        for name, script in pythons.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return subprocess.run(
            [programs / "sh", str(ROOT / "tools/make_venv.sh"), *words],
            env={"PATH": str(programs), "HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


#: This Python; what pip would add to an environment is not looked at, and takes seconds.
REAL = f'[ "$1" != -m ] || set -- "$@" --without-pip; exec "{sys.executable}" "$@"'
#: A Python of another version, as far as make_venv.sh asks.
OLD = 'case "$2" in *print*) echo 3.11.2;; *) exit 1;; esac'
BROKEN = "echo 'pyenv: python3.12: command not found' >&2; exit 127"


def test_without_any_python_it_says_how_to_get_one(machine: Run) -> None:
    done = machine("venv", pythons={})
    assert done.returncode == 1
    what, evidence, following = done.stderr.splitlines()
    assert what.startswith("error: No Python of at least 3.12 was found")
    assert evidence == "  evidence: tried: nothing is named python on PATH"
    assert following.startswith("  next: ")
    assert "3.12" in following


@pytest.mark.parametrize(
    "place", ["programs/python3", "programs/python3.12", "home/.pyenv/versions/3.12.9/bin/python"]
)
def test_a_good_python_is_found_behind_bad_ones(machine: Run, tmp_path: Path, place: str) -> None:
    pythons = {"programs/python3.12": BROKEN, "programs/python3.13": OLD, place: REAL}
    done = machine("venv", pythons=pythons)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "venv/bin/python").exists()
    assert machine("venv", pythons={}).stdout == "", "an environment that is there is kept"


def test_an_environment_of_an_old_python_is_not_touched(machine: Run) -> None:
    done = machine("venv", pythons={"programs/python3": REAL, "venv/bin/python": OLD})
    assert done.returncode == 1
    assert "venv needs a Python of at least 3.12" in done.stderr
    assert "next: rm -r venv && make setup" in done.stderr
