"""Container files and issue forms: linted, and in step with the rest. No engine is needed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from distribution.support import ROOT, build

FILES = sorted((ROOT / "containers").glob("*.Dockerfile"))


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    hadolint = Path(sys.executable).parent / "hadolint"
    return subprocess.run(
        [hadolint, "--failure-threshold", "info", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    done = lint(path)
    assert done.returncode == 0, done.stdout + done.stderr


def runs(path: Path) -> list[str]:
    """The commands of a file's RUN lines."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN ")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_command_can_be_read_and_installs_what_the_readme_installs(path: Path) -> None:
    commands = runs(path)
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True, timeout=60)
    installed = [command for command in commands if '".[megatron,preprocess,report]"' in command]
    assert len(installed) == 1
    pinned = "-c constraints.txt" in installed[0]
    assert pinned is (path.stem != "ascend")  # whose torch is another one
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f'pip install {"-c constraints.txt " * pinned}".[megatron,preprocess,report]"' in readme


def test_what_reaches_the_engine_makes_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """`COPY . .` takes what .dockerignore leaves."""
    kept = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    for name in kept:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tmp_path / "src" / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            (tmp_path / "src").mkdir(exist_ok=True)
            shutil.copy(source, tmp_path / "src" / name)
    made = build("wheel", tmp_path / "src", tmp_path / "wheel")
    with zipfile.ZipFile(made) as ours, zipfile.ZipFile(wheel) as usual:
        assert set(ours.namelist()) == set(usual.namelist())


def compose() -> dict[str, Any]:
    text = (ROOT / "containers/compose.yaml").read_text(encoding="utf-8")
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    return services


def test_every_machine_records_the_same_training() -> None:
    from accel_bridge.apps.cli.parity import _parser

    trainings = []
    for name, service in compose().items():
        parsed = _parser().parse_args(service["command"][1:])
        assert (
            ROOT / "containers" / service["build"]["context"] / service["build"]["dockerfile"]
        ).is_file()
        if name.startswith("record-"):
            assert str(parsed.out) == f"{name.removeprefix('record-')}.rec"
            trainings.append(parsed.argv)
    assert len(trainings) == 3
    assert trainings == trainings[:1] * 3
