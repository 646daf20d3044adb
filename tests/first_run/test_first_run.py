"""`accel-bridge first-run`: its steps on children that answer as told, and the file it leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel_bridge import recording
from accel_bridge.apps import first_run
from accel_bridge.apps.cli.main import main
from accel_bridge.apps.first_run import FirstMachine, Steps, _steps
from accel_bridge.apps.first_run._machine import SMALL
from accel_bridge.apps.first_run._steps import SHIPPED, _Ran

NPUS = FirstMachine("ascend", "Huawei Ascend NPU (EMULATED)", "it was found", 2, {})
ANSWERS: dict[str, tuple[int | None, str]] = {
    "env": (0, json.dumps({"packages": {"torch": "2.13.0", "torch-npu": None}})),
    "doctor": (
        0,
        json.dumps({"checks": [{"findings": [{"verdict": "warning", "what": "a warning"}]}]}),
    ),
    "tolerances": (0, json.dumps({"verdict": "PASS: 3 rows"})),
}


class Told(Steps):
    """Steps whose children answer as told; a recording is that of the CPU, changed."""

    def __init__(self, folder: Path, answers: dict[str, Any], **changes: Any) -> None:
        super().__init__(NPUS, folder)
        self.answers, self.changes, self.commands = {**ANSWERS, **answers}, changes, []

    def _child(self, name: str, seconds: float, *words: str, **environ: str) -> _Ran:
        self.commands.append((name, words, environ))
        status, output = self.answers.get(name, (0, ""))
        if "--out" in words and status == 0:
            found = recording.read(SHIPPED)
            if name in ("parity", *self.changes.pop("also", ())):
                found = replace(found, **self.changes)
            recording.write(found, Path(words[words.index("--out") + 1]))
        (self.folder / f"{name}.log").write_text(f"{name} ran\n")
        return _Ran(status, 1.0, output, [f"{name} ran"])


def results(folder: Path, answers: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {one.name: one for one in Told(folder, answers or {}, **changes).run(lambda one: None)}


def test_the_shipped_recording_is_one() -> None:
    found = recording.read(SHIPPED)
    assert len(found.steps) == 20
    assert found.precision == "float32"
    assert found.about["device"] == "CPU"
    # Nothing of the machine that made it.
    text = json.dumps(found.as_document(), default=str)
    assert "/work/" not in text
    assert "/root/" not in text


def test_all_steps_pass(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert {one.verdict for one in found.values()} == {"passed"}, found
    assert "0 faults, 1 warnings" in found["doctor"].summary
    rows = found["throughput"].rows
    assert [row["devices"] for row in rows] == [1, 2, 2]
    steps = recording.read(SHIPPED)
    tokens = SMALL.micro_batch * SMALL.sequence / steps.seconds
    assert rows[0]["tokens per second"] == pytest.approx(tokens)
    # Data parallel trains twice as many sequences, tensor parallel as many.
    assert rows[1]["tokens per second"] == pytest.approx(2 * tokens)
    assert rows[2]["tokens per second"] == pytest.approx(tokens)


def test_a_planted_difference_fails(tmp_path: Path) -> None:
    steps = list(recording.read(SHIPPED).steps)
    steps[11] = replace(steps[11], loss=steps[11].loss * 1.0001)
    found = results(tmp_path, steps=tuple(steps))
    assert found["parity"].verdict == "failed"
    assert "first step beyond the rule: 12" in found["parity"].evidence
    assert found["tolerances"].passed


def test_another_megatron_is_compared_with_this_machines_cpu(tmp_path: Path) -> None:
    identity = {**recording.read(SHIPPED).identity, "framework": {"version": "another"}}
    steps = Told(tmp_path, {}, identity=identity, also=("parity-cpu",))
    steps.changes["also"] = ("parity-cpu",)

    def child(name: str, seconds: float, *words: str, **environ: str) -> _Ran:
        steps.changes["also"] = ("parity-cpu",)
        return Told._child(steps, name, seconds, *words, **environ)

    steps._child = child  # type: ignore[method-assign]
    result = steps._parity()
    assert result.passed, result
    assert "this machine's CPU (framework: version:" in result.summary
    environ = next(one[2] for one in steps.commands if one[0] == "parity-cpu")
    assert environ["ACCEL_BRIDGE_BACKEND"] == "cpu"


def test_steps_that_fail_do_not_stop_the_others(tmp_path: Path) -> None:
    found = results(tmp_path, {"env": (1, ""), "tolerances": (None, ""), "speed-2-2": (1, "")})
    assert found["versions"].verdict == "failed"
    assert found["tolerances"].verdict == "out of time"
    assert found["parity"].passed
    assert found["throughput"].verdict == "failed"
    assert len(found["throughput"].rows) == 2
    assert "2 devices, tensor and sequence parallel: speed-2-2 ran" in found["throughput"].evidence


def test_a_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_steps.sys, "executable", shutil.which("sleep"))
    steps = Steps(NPUS, tmp_path, total=0)
    monkeypatch.setattr(
        _steps.subprocess,
        "Popen",
        lambda command, **options: subprocess_of(["sleep", "60"], options),
    )
    ran = steps._child("env", 60, "env")
    assert ran.status is None
    assert ran.seconds < 20


_POPEN = subprocess.Popen


def subprocess_of(command: list[str], options: dict[str, Any]) -> Any:
    return _POPEN(command, **options)


def test_the_file_to_send(tmp_path: Path) -> None:
    found = list(
        results(tmp_path, {"tolerances": (1, json.dumps({"verdict": "FAIL: norm"}))}).values()
    )
    packed = tmp_path / "out.zip"
    packed.write_bytes(first_run.pack(NPUS, found, tmp_path))
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
        text = archive.read(names[0]).decode()
        report = json.loads(archive.read("report.json"))
    assert {"env.json", "doctor.json", "first-run.rec", "parity.html", "tolerances.log"} <= set(
        names
    )
    assert "EMULATED" in text
    assert "no real device: these show that it runs, not how fast" in text
    assert "FAIL: norm" in text
    assert report["passed"] is False
    assert report["speed_means_something"] is False


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    taken = tmp_path / "results.zip"
    taken.write_bytes(b"PK somebody else's")
    command = [sys.executable, "-m", "accel_bridge", "first-run", "--out", str(taken)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "next:" in done.stderr
    assert taken.read_bytes() == b"PK somebody else's"


def test_failed_steps_end_in_three_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(first_run, "look", lambda requested: NPUS)
    monkeypatch.setattr(
        first_run, "Steps", lambda machine, folder: Told(folder, {"tolerances": (None, "")})
    )
    out = tmp_path / "first.zip"
    assert main(["first-run", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "1 of 5 steps of the first run failed: tolerances" in said.err
    assert "evidence: tolerances: tolerances ran" in said.err
    assert f"next:     send {out} back all the same" in said.err
    assert out.is_file()
