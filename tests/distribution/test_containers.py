"""Container files and issue forms: linted, and in step with the rest. No engine is needed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from distribution.support import ROOT, build, copy_sources

FILES = sorted((ROOT / "containers").glob("*.Dockerfile"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    command = [hadolint, "--failure-threshold", "info", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_reaches_the_engine_makes_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """`COPY . .` takes what .dockerignore leaves."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copy_sources(tmp_path / "src", [line[1:] for line in lines if line.startswith("!")])
    made = build("wheel", tmp_path / "src", tmp_path / "wheel")
    with zipfile.ZipFile(made) as ours, zipfile.ZipFile(wheel) as usual:
        assert set(ours.namelist()) == set(usual.namelist())


def test_every_machine_records_the_same_training() -> None:
    from accel_bridge.apps.cli.parity import _parser

    trainings = []
    text = (ROOT / "containers/compose.yaml").read_text(encoding="utf-8")
    for name, service in yaml.safe_load(text)["services"].items():
        parsed = _parser().parse_args(service["command"][1:])
        assert (
            ROOT / "containers" / service["build"]["context"] / service["build"]["dockerfile"]
        ).is_file()
        if name.startswith("record-"):
            assert str(parsed.out) == f"{name.removeprefix('record-')}.rec"
            trainings.append(parsed.argv)
    assert len(trainings) == 3
    assert trainings == trainings[:1] * 3
