"""How `make` finds a Python: tools/make_venv.sh."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distribution.support import ROOT

#: This Python; what pip would add to an environment is not looked at, and takes seconds.
REAL = f'[ "$1" != -m ] || set -- "$@" --without-pip; exec "{sys.executable}" "$@"'
#: A Python of another version, as far as make_venv.sh asks.
OLD = 'case "$2" in *print*) echo 3.11.2;; *) exit 1;; esac'
BROKEN = "echo 'pyenv: python3.12: command not found' >&2; exit 127"
BAD = {"programs/python3.12": BROKEN, "programs/python3.13": OLD}


@pytest.mark.parametrize(
    ("pythons", "said"),
    [
        ({}, "error: No Python of at least 3.12 was found"),
        (BAD | {"programs/python3": REAL}, ""),
        (BAD | {"home/.pyenv/versions/3.12.9/bin/python": REAL}, ""),
        ({"programs/python3": REAL, "venv/bin/python": OLD}, "next: rm -r venv && make setup"),
    ],
)
def test_a_good_python_is_found_behind_bad_ones(
    pythons: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name in ("sh", "rm"):
        (tmp_path / "programs").mkdir(exist_ok=True)
        (tmp_path / "programs" / name).symlink_to(str(shutil.which(name)))
    for name, script in pythons.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    done = subprocess.run(
        [tmp_path / "programs/sh", str(ROOT / "tools/make_venv.sh"), "venv"],
        env={"PATH": str(tmp_path / "programs"), "HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said in done.stderr
    assert (done.returncode == 0) == (not said), done.stderr
    assert said or (tmp_path / "venv/bin/python").exists()
