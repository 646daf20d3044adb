"""``accel-bridge parity record`` and ``parity compare``: statuses, output, and refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge.apps.cli.main import main
from accel_bridge.apps.testing import MODEL, Record
from accel_bridge.recording import read, write
from parity.made import recording, rounding


@pytest.fixture
def interpreter() -> str:
    """A new one: the commands as users run them."""
    return sys.executable


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two recordings that agree and one that does not agree with them."""
    recordings = (
        recording(),
        recording(rounding(1e-6, 1)),
        recording(loss=lambda step: 5.0 - 0.11 * step),
    )
    for name, one in zip("abc", recordings, strict=True):
        write(one, tmp_path / f"{name}.rec")
    return [str(tmp_path / f"{name}.rec") for name in "abc"]


@pytest.mark.slow
def test_runs_that_agree(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png, page = tmp_path / "x.png", tmp_path / "x.html"
    for _ in range(2):  # its own files may be replaced
        assert main(["parity", "compare", *files[:2], "--png", f"{png}", "--html", f"{page}"]) == 0
        assert "PASS: the runs agree" in capsys.readouterr().out
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "PASS" in page.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.rec",
        "b.rec",
        "c.rec",
        "x.png",
        "x.html",
    }


def test_runs_that_disagree(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "compare", files[0], files[2], "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    assert document["first_step"] == 1
    assert len(document["steps"]) == 4


def test_compare_needs_no_torch(files: list[str], python: Python) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['megatron'] = None\n"
        "from accel_bridge.apps.cli.main import main\n"
        f"raise SystemExit(main(['parity', 'compare', {files[0]!r}, {files[1]!r}]))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.megatron
def test_a_run_that_fails_records_nothing(forked: Python, tmp_path: Path) -> None:
    out = tmp_path / "run.rec"
    done = forked(
        *("-m", "accel_bridge", "parity", "record", "--out", str(out)),
        *("--", *MODEL, "--no-such-argument"),
        ACCEL_BRIDGE_BACKEND="cpu",
    )
    assert done.returncode == 2
    assert "nothing was recorded" in done.stderr
    assert not out.exists()


def test_what_a_recording_holds(record: Record) -> None:
    found = read(record("--train-iters", "3"))
    assert [step.number for step in found.steps] == [1, 2, 3]
    assert found.arguments["hidden_size"] == 64
    assert found.environment["packages"]["torch"]
    states = {patch["id"]: patch["state"] for patch in found.patches}
    assert states["record-step"] == "reached"
    assert states["record-gradients"] == "reached"
    assert "drawn by parameter name" in found.notes[0]
    assert {item.kind for item in found.observations} == {
        "weight",
        "output",
        "gradient",
        "weight gradient",
    }
