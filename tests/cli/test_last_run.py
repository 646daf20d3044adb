"""How the patches of the last run ended: one line, and ``accel-bridge patches --last``."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge import _last_run
from accel_bridge._errors import BridgeError
from accel_bridge.apps.cli.patches import main
from accel_bridge.patching import State


def status(id: str, state: State, reason: str = "") -> Any:
    patch = SimpleNamespace(id=id, target="m:f", why=f"why {id}")
    return SimpleNamespace(patch=patch, state=state, reason=reason, counted=True)


ENDED = [
    status("used", State.REACHED),
    status("idle", State.APPLIED),
    status("left-out", State.SKIPPED, "not here"),
]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "accel_bridge" / "last-run.json"


def test_the_end_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    _last_run.report("cpu", ENDED)
    line = "[accel_bridge] patches used: 1, not needed: 1 "
    assert capsys.readouterr().err == f"{line}(`accel-bridge patches --last` lists them)\n"
    _last_run.report("cpu", [*ENDED, status("bad", State.FAILED, "gone")])
    assert "not needed: 1, failed: 1 (" in capsys.readouterr().err
    assert main(["--last"]) == 1


def test_the_long_list_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    _last_run.report("cpu", ENDED)
    capsys.readouterr()
    assert main(["--last"]) == 0
    shown = capsys.readouterr().out
    assert "used      reached  m:f     why used" in shown
    assert "left-out  skipped  m:f     not here" in shown
    assert main(["--last", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["backend"] == "cpu"
    assert [row["state"] for row in document["patches"]] == ["reached", "applied", "skipped"]


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[1]", '{"format": 1, "patches": [{}]}', '{"format": 2}', "\x00"]
)
def test_no_such_note(state: Path, text: str | None) -> None:
    if text is not None:
        state.parent.mkdir()
        state.write_text(text)
    with pytest.raises(BridgeError, match="No finished run is noted") as caught:
        main(["--last"])
    assert str(state) in caught.value.evidence[0]


def test_a_home_that_takes_no_file_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    _last_run.report("cpu", ENDED)
    assert capsys.readouterr().err == "[accel_bridge] patches used: 1, not needed: 1\n"


def test_only_rank_0_speaks_and_only_of_runs(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _last_run.report("cpu", ENDED[1:])
    monkeypatch.setenv("RANK", "1")
    _last_run.report("cpu", ENDED)
    assert capsys.readouterr().err == ""
    assert not state.exists()


def test_it_stands_alone() -> None:
    with pytest.raises(BridgeError, match="has ended"):
        main(["--last", "script.py"])
