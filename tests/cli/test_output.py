"""Tables on a terminal and elsewhere, and lines to stderr."""

from __future__ import annotations

import re
import sys

import pytest

from accel_bridge import _log
from accel_bridge.apps.cli._output import print_json, print_table

ROWS = [["a", "a [red]long[/red] reason " * 10], ["bcd", "short"]]


def test_elsewhere_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "reason"], ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name  reason"
    assert lines[1] == f"a     {ROWS[0][1].rstrip()}"
    assert lines[2] == "bcd   short"


def test_on_a_terminal_it_is_ruled_and_folded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_table(["name", "reason"], ROWS)
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert "───" in text
    assert "[red]" in text
    assert text.count("reason") == 11
    assert max(len(line) for line in text.splitlines()) <= 60


def test_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [])
    assert capsys.readouterr().out == "(none)\n"


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
    _log.say("say")
    _log.warn("warn")
    _log.debug("debug")
    assert capsys.readouterr().err.splitlines() == [f"[accel_bridge] {line}" for line in said]


def test_only_rank_0_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    _log.warn("warn")
    monkeypatch.setenv("RANK", "0")
    _log.say("one\ntwo")
    captured = capsys.readouterr()
    assert captured.err == "[accel_bridge] one\n[accel_bridge] two\n"
    assert captured.out == ""
