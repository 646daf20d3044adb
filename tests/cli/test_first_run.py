"""`accel-bridge first-run`: its steps on children that answer as told, and the file it leaves."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from parity.made import recording as made_recording

from accel_bridge import recording
from accel_bridge.apps.cli import first_run
from accel_bridge.apps.cli.first_run import Machine
from accel_bridge.apps.cli.main import main
from accel_bridge.apps.cli.parity import _parser
from accel_bridge.errors import BridgeError

NPUS = Machine("ascend", "Huawei Ascend NPU (EMULATED)", "it was found", 2, {})


def test_its_steps_are_commands_of_ours() -> None:
    words = {name: words for name, _, words, _ in first_run.steps(NPUS)}
    assert [name for name in words if name.startswith("speed")] == [
        "speed-1-1",
        "speed-2-1",
        "speed-2-2",
    ]
    for one in words.values():
        if one[0] == "parity":
            _parser().parse_args(one[1:])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing step, one that hangs and others that answer, in place of accel-bridge."""

    def steps(machine: Machine) -> Iterator[tuple[str, float, list[str], str]]:
        yield "doctor", 60, ["doctor"], "cpu"
        yield "tolerances", 60, ["broken"], "cpu"
        yield "parity", 0, ["doctor", "--wait"], "cpu"
        recording.write(made_recording(arguments={"seq_length": 8}), Path("speed-1-1.rec"))

    monkeypatch.setattr(first_run, "steps", steps)
    monkeypatch.setattr(first_run, "look", lambda requested: NPUS)


@pytest.mark.usefixtures("told")
def test_a_step_that_fails_stops_no_other_and_the_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child = tmp_path / "accel_bridge.py"
    child.write_text(
        "import sys, time\nprint('said', sys.argv)\n"
        "time.sleep(60 * ('--wait' in sys.argv)); sys.exit('broken' in sys.argv)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    out = tmp_path / "first.zip"
    assert main(["first-run", "--out", str(out), "--json"]) == 1
    said = capsys.readouterr()
    assert "2 of 3 steps of the first run failed: tolerances, parity" in said.err
    report = json.loads(said.out)
    assert [one["verdict"] for one in report["steps"]] == ["passed", "failed", "out of time"]
    with zipfile.ZipFile(out) as archive:
        names = archive.namelist()
        text = archive.read(names[0]).decode()
    assert {"report.json", "doctor.log", "tolerances.log"} <= set(names)
    assert "EMULATED" in text
    assert "no real device" in text


def test_speed_is_that_of_the_recordings(tmp_path: Path) -> None:
    made = made_recording(arguments={"seq_length": 8})
    for name in ("speed-1-1", "speed-2-1", "speed-2-2"):
        recording.write(made, tmp_path / f"{name}.rec")
    rates = [row["tokens per second"] for row in first_run.speeds(NPUS, tmp_path)]
    # Data parallel trains twice as many sequences, tensor parallel as many.
    assert rates == pytest.approx([16 / made.seconds, 32 / made.seconds, 16 / made.seconds])


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    taken = tmp_path / "results.zip"
    taken.write_bytes(b"PK somebody else's")
    with pytest.raises(BridgeError, match="would write over"):
        first_run.main(["--out", str(taken)])
    assert taken.read_bytes() == b"PK somebody else's"
