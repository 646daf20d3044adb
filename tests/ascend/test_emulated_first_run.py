"""`accel-bridge first-run` on an emulated machine that lies: what it says is found."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from .conftest import Emulate

#: As the whole run would, but the steps that a lie concerns, so that the test takes seconds.
_SOME = """
import sys
from accel_bridge.apps.cli import first_run, main
every = first_run.steps
wanted = sys.argv[1].split(",")
first_run.steps = lambda machine: (one for one in every(machine) if one[0] in wanted)
sys.exit(main.main(["first-run", "--backend", "ascend", "--out", sys.argv[2]]))
"""
TWO = "train-cpu-2,train-here-2,parity-2"


@pytest.mark.slow
@pytest.mark.megatron
@pytest.mark.parametrize(
    ("lie", "steps", "failed", "says"),
    [
        ("", "limits", [], "none"),
        pytest.param(*("", f"limits,kernels,{TWO}", [], "none"), marks=pytest.mark.conformance),
        ("limit", "limits", ["limits"], "number of query heads is 1 to 256; with 256"),
        ("order", TWO, ["parity-2"], "parity-2"),
    ],
)
def test_a_machine_that_lies_is_found(
    emulate: Emulate, tmp_path: Path, lie: str, steps: str, failed: list[str], says: str
) -> None:
    script, out = tmp_path / "some.py", tmp_path / "first.zip"
    script.write_text(_SOME)
    ended = emulate(
        *(sys.executable, script, steps, out), devices=2, timeout=400, ASCEND_EMULATOR_LIES=lie
    )
    assert out.is_file(), ended.output[-3000:]
    with zipfile.ZipFile(out) as archive:
        report = json.loads(archive.read("report.json"))
        page = archive.read("report.html").decode()
    assert [one["name"] for one in report["steps"] if one["verdict"] != "passed"] == failed, report
    assert ended.returncode == (1 if failed else 0)
    assert says in page
    assert "EMULATED" in page
