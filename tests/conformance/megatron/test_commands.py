"""The runner of a command for each model and tool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import commands
from recipe_verdicts import Phase

SHOWS = {"shows": "written [0-9]+"}
ASKS = {**SHOWS, "asks": ("http://a/api", "{}")}


@pytest.mark.parametrize(
    ("row", "status", "output", "answer", "outcome"),
    [
        (SHOWS, 0, "written 3 files", "", "passed"),
        (SHOWS, 0, "nothing", "", "failed"),
        (SHOWS, 1, "ValueError: no", "", "failed"),
        (SHOWS, 1, "accel-bridge: error: It cannot.\n  evidence: x\n  next: y", "", "refused"),
        (SHOWS, -1, "", "", "failed"),
        (ASKS, 0, "", "written 4", "passed"),
        (ASKS, 0, "written 4", "", "failed"),
        ({"writes": "*.bin"}, 0, "", "", "failed"),
    ],
)
def test_what_an_end_means(
    row: dict[str, object], status: int, output: str, answer: str, outcome: str, tmp_path: Path
) -> None:
    command = commands.Command("tools", "a tool", "python tool.py", **row)  # type: ignore[arg-type]
    phase = Phase(status, f"$ python tool.py\n{output}")
    assert commands._judge_tool(command, phase, answer, tmp_path).outcome == outcome
