"""In a clone, after ``pip install .`` and not ``-e .``: the clone's own package is found and whole.

``python -m accel_bridge`` imports from the working directory first, where backends/, patches/ and
pretrain/ stand beside accel_bridge/ and not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest


def in_directory(directory: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``words`` as a user would who typed them in ``directory``."""
    return subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "in_clone"),
    [
        (["bin/accel-bridge"], False),
        pytest.param(["bin/accel-bridge"], True, marks=pytest.mark.slow),
        pytest.param(["bin/python", "-m", "accel_bridge"], True, marks=pytest.mark.slow),
    ],
)
def test_its_plugins_are_found(
    installed: Path, sources: Path, tmp_path: Path, program: list[str], in_clone: bool
) -> None:
    first, *rest = program
    directory = sources if in_clone else tmp_path
    done = in_directory(directory, installed / first, *rest, "plugins", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["failed"] == []
    names = {"cpu", "cuda", "ascend", "apps", "megatron", "mindspeed", "pretrain"}
    assert names <= {found["name"] for found in shown["loaded"]}


@pytest.mark.slow
def test_a_command_with_child_processes_works(
    installed: Path, sources: Path, tmp_path: Path
) -> None:
    (tmp_path / "numbers.jsonl").write_text('{"text": "1 2 3"}\n' * 9)
    words = ["--input", tmp_path / "numbers.jsonl", "--output-prefix", tmp_path / "out"]
    words += ["--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--workers", "2"]
    command = [installed / "bin/python", "-m", "accel_bridge", "preprocess", *words]
    done = in_directory(sources, *command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out_text_document.idx").is_file()


@pytest.mark.slow
def test_a_script_runs_with_the_bridge(installed: Path, sources: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import accel_bridge; print(accel_bridge.current().selection.chosen.name)")
    done = in_directory(sources, installed / "bin/python", "-m", "accel_bridge.run", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cpu"]
