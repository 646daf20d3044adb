"""library_tests.py: others' tests against a shim, and the reviewed lists."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
library_tests: Any = importlib.import_module("library_tests")
Expected, Result = library_tests.Expected, library_tests.Result

TESTS = """
import os, time
import pytest
import flash_attn

def test_it_is_the_shim():
    assert "accel_bridge" in flash_attn.__file__

@pytest.mark.parametrize("n", [1, 2])
def test_fails(n):
    assert n == 0

def test_dies():
    os._exit(3)

def test_hangs():
    time.sleep(60)

@pytest.fixture
def broken():
    raise OSError("no such thing")

def test_setup(broken): ...

@pytest.mark.skip("for a reason")
def test_skipped(): ...

def test_after_all():
    pass
"""


@pytest.mark.conformance
def test_every_outcome_is_told_apart(tmp_path: Path) -> None:
    directory = tmp_path / "tests/inner"
    directory.mkdir(parents=True)
    (directory / "test_toy.py").write_text(TESTS)
    (directory / "test_broken.py").write_text("import absent_module\n")
    found = tmp_path / "found.json"
    command = [sys.executable, str(HERE / "library_tests.py"), "flash_attn", str(tmp_path)]
    command += ["--files", "inner/*", "--limit", "2", "--json", str(found)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    outcomes = {one["test"]: one["outcome"] for one in json.loads(found.read_text())["tests"]}
    name = "inner/test_toy.py::test_"
    assert outcomes == {
        "inner/test_broken.py::": "failed",
        f"{name}it_is_the_shim": "passed",
        f"{name}fails[1]": "failed",
        f"{name}fails[2]": "failed",
        f"{name}dies": "failed",
        f"{name}hangs": "failed",
        f"{name}setup": "failed",
        f"{name}skipped": "skipped",
        f"{name}after_all": "passed",
    }
    assert "inner/test_toy.py::test_fails (2 times, as" in done.stdout
    assert "the process ended with 3" in done.stdout
    assert "6 failed, 2 passed, 1 skipped" in done.stdout


def test_what_is_wrong_with_a_result() -> None:
    entries = [Expected("test_a.py::test_x[*fp8]", "refused", "because", ("cpu",))]
    results = [
        Result("test_a.py::test_x[1-fp8]", "failed", 0),
        Result("test_a.py::test_x[2-fp8]", "passed", 0),
        Result("test_a.py::test_x[1-bf16]", "failed", 0),
        Result("test_a.py::test_x[2-bf16]", "passed", 0),
    ]
    judged = library_tests.judged
    wrong = [one.wrong.split(",")[0] for one in judged(results, entries, "cpu")]
    assert wrong == ["", "passes", "fails and is not on the list", ""]
    assert [bool(one.wrong) for one in judged(results, entries, "cuda")] == [
        True,
        False,
    ] * 2
    assert "66.67% of those that can pass" in library_tests.summary(judged(results, entries, "cpu"))


def test_a_wrong_entry_is_named_and_every_list_is_right(tmp_path: Path) -> None:
    for path in library_tests.LISTS.glob("*.toml"):
        library_tests.read_list(path)
    for text in ('tests = "a::b"\nkind = "refused"', 'tests = "a::b"\nkind = "odd"\nwhy = "x"'):
        (tmp_path / "list.toml").write_text(f"[[expected]]\n{text}\n")
        with pytest.raises(ValueError, match=r"list\.toml"):
            library_tests.read_list(tmp_path / "list.toml")
