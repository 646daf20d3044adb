"""Tables on a terminal and elsewhere, and lines to stderr."""

from __future__ import annotations

import pytest

from accel_bridge.apps.cli._output import print_json
from accel_bridge.process import log


def test_json_keeps_stdout_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> object:
        print("noise")
        return {"ü": 1}

    print_json(build)
    captured = capsys.readouterr()
    assert captured.out == '{\n  "ü": 1\n}\n'
    assert captured.err == "noise\n"


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ("", ["say", "warning: warn"]),
        ("info", ["say", "warning: warn"]),
        ("quiet", ["warning: warn"]),
        ("debug", ["say", "warning: warn", "debug"]),
    ],
)
def test_how_much_is_said(
    level: str,
    said: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_LOG", level)
    monkeypatch.delenv("RANK", raising=False)
    log.say("say")
    log.warn("warn")
    log.debug("debug")
    assert capsys.readouterr().err.splitlines() == [f"[accel_bridge] {line}" for line in said]
