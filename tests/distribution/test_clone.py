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

#: Shown for each part: where it is imported from. Nothing else of the clone is importable.
WHERE = """
import importlib.util, pickle
import accel_bridge.backends.cpu, accel_bridge.patches.plugin, accel_bridge.pretrain.command
from accel_bridge import backends, patches, pretrain
from accel_bridge.backends.cpu.plugin import accel_bridge_backends

if __name__ == "__main__":
    for module in (accel_bridge, backends, patches, pretrain, accel_bridge.backends.cpu):
        print(module.__file__)
    for name in ("tests", "docs", "tools", "accel_bridge"):
        assert importlib.util.find_spec(f"accel_bridge.{name}") is None, name
    for backend in accel_bridge_backends():
        assert type(pickle.loads(pickle.dumps(backend))) is type(backend)
    from multiprocessing import get_context
    with get_context("spawn").Pool(1) as pool:
        (child,) = pool.map(patches_file, [None])
    print(child)
"""
CHILD = """
def patches_file(_):
    from accel_bridge.patches import _factory
    assert _factory.TARGETS.is_file()
    return _factory.__file__
"""


def in_folder(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``words`` as a user would who typed them in ``folder``."""
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", [["bin/accel-bridge"], ["bin/python", "-m", "accel_bridge"]])
def test_its_plugins_are_found(installed: Path, sources: Path, program: list[str]) -> None:
    first, *rest = program
    done = in_folder(sources, installed / first, *rest, "plugins", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["failed"] == []
    assert {"cpu", "cuda", "ascend", "megatron"} <= {found["name"] for found in shown["loaded"]}


@pytest.mark.slow
def test_its_parts_are_those_of_the_clone(installed: Path, sources: Path, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text(CHILD + WHERE)
    code = f"import runpy; runpy.run_path({str(tmp_path / 'where.py')!r}, run_name='__main__')"
    done = in_folder(sources, installed / "bin/python", "-c", code)
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stdout.split()]
    expected = ["accel_bridge", "backends", "patches", "pretrain", "backends/cpu", "patches"]
    assert [path.parent for path in paths] == [sources / name for name in expected]


def test_a_command_with_child_processes_works(
    installed: Path, sources: Path, tmp_path: Path
) -> None:
    (tmp_path / "numbers.jsonl").write_text('{"text": "1 2 3"}\n' * 9)
    words = ["--input", tmp_path / "numbers.jsonl", "--output-prefix", tmp_path / "out"]
    words += ["--tokenizer-type", "NullTokenizer", "--vocab-size", "9", "--workers", "2"]
    command = [installed / "bin/python", "-m", "accel_bridge", "preprocess", *words]
    done = in_folder(sources, *command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out_text_document.idx").is_file()


@pytest.mark.slow
def test_a_script_runs_with_the_bridge(installed: Path, sources: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import accel_bridge; print(accel_bridge.current().selection.chosen.name)")
    done = in_folder(sources, installed / "bin/python", "-m", "accel_bridge.run", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cpu"]
