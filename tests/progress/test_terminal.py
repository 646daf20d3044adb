"""A command on a real pseudo terminal: its log, its signals, its status, and what is shown."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from processes import ends
from rich.console import Console

from accel_bridge.process import progress
from accel_bridge.process.progress.screen import Screen
from progress import terminal
from progress.test_lines import OLD

#: A training run of a tenth of a second, as far as a terminal is concerned.
TRAINING = f"""
import os, sys, time
line = {OLD!r}
print("building GPT model ...")
print("  seq_length ...................................... 1024", flush=True)
for number in range(1, 4):
    print(line.replace("12/", f"{{number}}/"), flush=True)
    time.sleep(0.15)
print("WARNING: something to know", file=sys.stderr)
"""
#: One that waits, and says what it was sent.
WAITING = """
import signal, sys, time
def note(number, frame):
    print(f"WARNING: got {signal.Signals(number).name}", flush=True)
    sys.exit(7)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
print("validation loss at ready", flush=True)
time.sleep(30)
"""
WATCH = (
    "import sys; from accel_bridge.process import progress; sys.exit(progress.run(sys.argv[1:]))"
)


def watch(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", WATCH, sys.executable, "-c", code, *words]


@pytest.mark.parametrize("columns", [40, 100])
def test_a_run_is_one_line_and_its_log_has_everything(tmp_path: Path, columns: int) -> None:
    shown = terminal.run(watch(TRAINING, "--save", "ck/pt"), tmp_path, columns=columns)
    (log,) = (tmp_path / "ck/pt").iterdir()
    assert re.fullmatch(r"train-\d{8}-\d{6}\.log", log.name)
    assert shown.status == 0
    assert shown.rows[0] == f"[accel_bridge] log: ck/pt/{log.name}"
    assert shown.rows[1] == "WARNING: something to know"
    assert re.match(r"done .*  3/100  loss  8.350", shown.rows[2])
    assert all(len(state) <= columns for state in shown.moving)
    assert "building GPT model" in log.read_text()
    assert log.read_text().count("lm loss") == 3


def test_a_failure_names_its_reason_and_its_log(tmp_path: Path) -> None:
    shown = terminal.run(watch(f"{TRAINING}\nraise ValueError('broken')"), tmp_path)
    assert shown.status == 1
    assert "ValueError: broken" in shown.text
    assert re.search(r"everything that was said: train-\S+\.log", shown.text)


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    code = WAITING.replace("(signal.SIGTERM,", "(signal.SIGINT,").replace("sys.exit(7)", "")
    code = code.replace("time.sleep(30)", "time.sleep(1)")
    shown = terminal.run(watch(code), tmp_path, until="ready", key=b"\x03")
    (log,) = tmp_path.iterdir()
    assert log.read_text().count("got SIGINT") == 1
    assert shown.status == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_this_process_is_the_commands(tmp_path: Path, number: signal.Signals) -> None:
    shown = terminal.run(watch(WAITING), tmp_path, until="ready", number=number)
    assert f"got {number.name}" in shown.text
    assert shown.status == 7


def test_a_command_that_is_killed_says_so_by_its_status(tmp_path: Path) -> None:
    shown = terminal.run(watch("import os; os.kill(os.getpid(), 9)"), tmp_path)
    assert shown.status == 137
    assert "accel-bridge: error: the command was killed by SIGKILL." in shown.text


def test_the_command_ends_with_who_watches_it(tmp_path: Path) -> None:
    code = f"import os; print('validation loss at pid', os.getpid(), flush=True)\n{WAITING}"
    shown = terminal.run(watch(code), tmp_path, until="ready", number=signal.SIGKILL)
    found = re.search(r"at pid (\d+)", shown.text)
    assert ends(int(found[1]))


def test_run_takes_the_flag(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accel_bridge", "run", "--progress", "--", sys.executable]
    shown = terminal.run([*command, "-c", TRAINING], tmp_path)
    assert shown.status == 0
    assert any(re.match(r"done .*  3/100", row) for row in shown.rows)
    without = terminal.run([*command[:4], *command[5:], "-c", "print('plain')"], tmp_path)
    assert "plain" in without.rows


def test_nothing_is_watched_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_PROGRESS", "1")
    assert not progress.is_wanted(default=True)  # pytest's output is no terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert progress.is_wanted(default=False)
    monkeypatch.setenv("ACCEL_BRIDGE_PROGRESS", "0")
    assert not progress.is_wanted(default=True)
    monkeypatch.delenv("ACCEL_BRIDGE_PROGRESS")
    assert progress.is_wanted(default=True)
    assert not progress.is_wanted(default=False)


def test_a_terminal_that_goes_away_ends_no_run(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    screen = Screen(Console(file=os.fdopen(writing, "w"), force_terminal=True))
    screen.feed(OLD)
    screen.close(0)
