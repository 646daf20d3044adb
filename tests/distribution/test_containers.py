"""Container files and issue forms: linted, and in step with the rest. No engine is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from distribution.support import FOLDERS, ROOT

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


def test_hadolint_says_what_is_wrong(tmp_path: Path) -> None:
    planted = tmp_path / "planted.Dockerfile"
    planted.write_text("FROM python:latest\nRUN pip install torch\n")
    done = lint(planted)
    assert done.returncode != 0
    assert {"DL3007", "DL3013"} <= set(re.findall(r"DL\d+", done.stdout))


def wrong(text: str) -> list[str]:
    """What hadolint does not ask for."""
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    full = [re.sub(r"\$\{(\w+)\}", lambda m: arguments.get(m[1], ""), base) for base in bases]
    found = [
        f"{base} is not pinned to a patch"
        for base in full
        if not re.search(r":\d+\.\d+\.\d+", base)
    ]
    user = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    if not user or user[-1] in ("0", "root"):
        found.append("it runs as root")
    if "COPY . ." in text.rpartition("FROM")[2] and len(bases) > 1:
        found.append("the sources are in the last stage")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bases_are_pinned_and_nobody_is_root(path: Path) -> None:
    assert wrong(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("3.12.12", "3.12"),
        ("USER 1000", "USER root"),
        ("USER 1000\n", ""),
        ("RUN useradd", "COPY . .\nRUN useradd"),
    ],
)
def test_a_worse_file_is_noticed(old: str, new: str) -> None:
    text = (ROOT / "containers/cpu.Dockerfile").read_text(encoding="utf-8")
    assert old in text
    assert wrong(text.replace(old, new))


def test_the_context_has_what_an_installation_needs() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    needed = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "constraints.txt"}
    assert kept == set(FOLDERS) | needed


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


FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_every_form_asks_for_env(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(form) == {"name", "description", "labels", "body"}
    kinds = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    assert {part["type"] for part in form["body"]} <= kinds
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all("label" in part["attributes"] for part in fields)
    asked = [part for part in fields if "`accel-bridge env`" in part["attributes"]["label"]]
    assert [part["validations"]["required"] for part in asked] == [True]
