"""Container files and issue forms: linted, and in step with the rest. No engine is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from distribution.support import ROOT

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
            trainings.append(parsed.words)
    assert len(trainings) == 3
    assert trainings == trainings[:1] * 3
