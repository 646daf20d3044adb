"""How the patches of the last run ended: one line, and ``accel-bridge patches --last``."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plugin_site import Python

from accel_bridge.apps.cli.patches import main
from accel_bridge.bridge import last_run
from accel_bridge.errors import BridgeError
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


def test_the_long_list_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    last_run.report("cpu", ENDED, trained=True)
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
    with pytest.raises(BridgeError, match="No finished training is noted") as caught:
        main(["--last"])
    assert str(state) in caught.value.evidence[0]


def test_a_home_that_takes_no_file_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    last_run.report("cpu", ENDED, trained=True)
    assert capsys.readouterr().err == "[accel_bridge] patches used: 1, not needed: 1\n"


def test_only_rank_0_speaks_and_only_of_runs(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    last_run.report("cpu", ENDED[1:], trained=True)
    monkeypatch.setenv("RANK", "1")
    last_run.report("cpu", ENDED, trained=True)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "a rank that has a worker")
    last_run.report("cpu", ENDED, trained=False)
    assert capsys.readouterr().err == ""
    assert not state.exists()


def test_a_look_leaves_the_note_of_the_last_training(state: Path) -> None:
    last_run.report("cpu", ENDED, trained=True)
    before = state.read_bytes()
    last_run.report("cpu", ENDED[:1], trained=False)
    assert state.read_bytes() == before


@pytest.mark.parametrize(("step", "noted"), [("", False), ("optimizer.step()", True)])
def test_a_training_is_what_steps_an_optimizer(
    state: Path, forked: Python, step: str, noted: bool
) -> None:
    code = f"""if True:
        import accel_bridge.auto, torch
        from types import SimpleNamespace as Of
        from accel_bridge.patching import State
        bridge = accel_bridge.current()
        patch = Of(id="x", target="m:f", why="", removed_when="")
        reached = Of(patch=patch, state=State.REACHED, reason="", counted=True)
        type(bridge).statuses = (reached,)
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight])
        weight.sum().backward()
        {step}"""
    done = forked("-c", code, ACCEL_BRIDGE_BACKEND="cpu")
    assert "patches used: 1" in done.stderr
    assert state.exists() == noted
