"""Completion in shells: what a half-typed line may become, and the code that shells source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel_bridge.apps.cli._completion import SHELLS

FIELD = "\v"


def complete(line: str, directory: Path) -> list[str]:
    """What the program answers to the shell, as argcomplete's code in shells asks it."""
    answer = directory / ".answer"
    done = subprocess.run(
        [sys.executable, "-m", "accel_bridge"],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
            "IFS": FIELD,
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "COMP_TYPE": "9",
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        },
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == done.stderr == "", "the line that is being typed must stay whole"
    return (
        [word.strip() for word in answer.read_text().split(FIELD) if word]
        if (answer.exists())
        else []
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("accel-bridge pl", {"plot", "plugins"}),
        ("accel-bridge parity com", {"compare"}),
        ("accel-bridge plot --pn", {"--png"}),
        ("accel-bridge run --", {"--help", "--record", "--progress"}),
        ("accel-bridge plot tr", {"training.log"}),
        ("accel-bridge nonsense --", set()),
        ("accel-bridge plot 'open", set()),
    ],
)
def test_a_line_goes_on(line: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "training.log").touch()
    assert set(complete(line, tmp_path)) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_the_code_for_a_shell(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "accel_bridge", "completion", shell],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "accel-bridge" in done.stdout
    if shell == "bash":
        script = tmp_path / "completion"
        script.write_text(f"{done.stdout}\ncomplete -p accel-bridge\n")
        checked = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True)
        assert "accel-bridge" in checked.stdout
