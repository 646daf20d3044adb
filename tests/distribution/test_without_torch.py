"""Where PyTorch is not installed, what needs it says so and the rest works."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_site import Python

#: Python imports it at start-up when its folder is on the path.
SITECUSTOMIZE = """
import sys
from importlib.machinery import PathFinder


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in ("torch", "numpy", "megatron")
        return None if hidden else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


@pytest.fixture
def bare(python: Python, tmp_path: Path) -> Python:
    """``python`` without torch, numpy and Megatron."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return lambda *words: python(*words, PYTHONPATH=str(tmp_path))


@pytest.mark.parametrize("words", [["env"], ["backends"], ["plugins"], ["--help"]])
def test_what_looks_works(bare: Python, words: list[str]) -> None:
    done = bare("-m", "accel_bridge", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "accel_bridge", "patches"],
        ["-m", "accel_bridge", "run", __file__],
        ["-m", "accel_bridge", "pretrain", "--", "--num-layers", "2"],
        ["-c", "import accel_bridge.auto"],
    ],
)
def test_what_needs_it_says_so_in_three_parts(bare: Python, words: list[str]) -> None:
    done = bare(*words)
    assert done.returncode != 0
    *_, what, evidence, following = done.stderr.splitlines()
    assert what.endswith("is not installed.")
    assert "no module torch" in evidence
    assert "next:     pip install" in following
