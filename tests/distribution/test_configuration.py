"""What pyproject.toml promises."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from accel_bridge import __version__
from distribution.support import ROOT, pyproject


def test_the_extras_that_users_are_told_of_exist() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    assert {"megatron", "cuda", "ascend", "preprocess", "report", "dev"} <= set(extras)


def test_the_version_is_the_same_everywhere() -> None:
    assert pyproject()["project"]["version"] == __version__


def test_the_python_of_the_repository_is_the_one_that_is_tested() -> None:
    assert (ROOT / ".python-version").read_text() == "3.12\n"


def test_a_warning_in_our_own_code_is_an_error() -> None:
    with pytest.raises(UserWarning, match="planted"):
        warnings.warn_explicit("planted", UserWarning, "x.py", 1, module="accel_bridge.planted")
    with pytest.warns(UserWarning, match="elsewhere"):
        warnings.warn_explicit("elsewhere", UserWarning, "x.py", 1, module="somebody.planted")


@pytest.mark.parametrize("check", [["check"], ["format", "--check"]])
def test_style(check: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *check, "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
