"""The dispatcher: help, unknown commands, errors in three parts."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import types
from importlib import import_module
from pathlib import Path

import pytest
from plugin_site import Python

from accel_bridge import __version__
from accel_bridge._errors import SelectionError
from accel_bridge.apps.cli import main as cli
from accel_bridge.apps.cli.main import COMMANDS, Command, help_text, main

ALL = [command for _, group in COMMANDS for command in group]


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_every_command_has_its_module(command: Command) -> None:
    module = import_module(command.module)
    if command.function is not None:
        assert callable(getattr(module, command.function))
        return
    subparsers = argparse.ArgumentParser().add_subparsers()
    module.add_parser(subparsers)
    assert command.name in subparsers.choices
    assert callable(module.run)


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_explains_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text == help_text()
    for command in ALL:
        assert f"  {command.name}" in text
        assert command.summary in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"accel-bridge {__version__}\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [("bakcends", "did you mean 'backends'?"), ("--hlep", "did you mean '--help'?")],
)
def test_unknown_words_are_errors_in_three_parts(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("accel-bridge: error: ")
    assert hint in captured.err
    assert "evidence:" in captured.err
    assert "next:" in captured.err


def test_wrong_options_of_a_command_show_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["env", "--jsn"])
    assert caught.value.code == 2
    assert "usage: accel-bridge env" in capsys.readouterr().err


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends with a BridgeError."""
    module = types.ModuleType("failing_command")

    def run(words: list[str]) -> int:
        raise SelectionError("it broke", evidence=["because", "twice"], next="mend it")

    module.run_words = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_command", module)
    command = Command("fail", "fails", "failing_command", "run_words")
    monkeypatch.setattr(cli, "COMMANDS", (("Test", (command,)),))


@pytest.mark.usefixtures("failing")
def test_an_error_has_three_parts_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCEL_BRIDGE_LOG", raising=False)
    assert main(["fail"]) == 2
    assert capsys.readouterr().err == (
        "accel-bridge: error: it broke\n"
        "  evidence: because\n"
        "  evidence: twice\n"
        "  next:     mend it\n"
    )


@pytest.mark.usefixtures("failing")
def test_debug_adds_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_LOG", "debug")
    assert main(["fail"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_command_gets_all_its_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("echoing_command")
    seen: list[list[str]] = []

    def run(words: list[str]) -> int:
        seen.append(words)
        return 3

    module.run_words = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "echoing_command", module)
    command = Command("echo", "echoes", "echoing_command", "run_words")
    monkeypatch.setattr(cli, "COMMANDS", (("Test", (command,)),))
    assert main(["echo", "--help", "--", "-x", "--version"]) == 3
    assert seen == [["--help", "--", "-x", "--version"]]


def test_python_m_accel_bridge_is_the_same_command(python: Python) -> None:
    done = python("-m", "accel_bridge", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, help_text(), "")
    done = python("-m", "accel_bridge", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")


def test_the_installed_script_is_the_same_command() -> None:
    script = Path(sys.executable).with_name("accel-bridge")
    done = subprocess.run(
        [script, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == help_text()


def test_help_is_quick(python: Python) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        python("-m", "accel_bridge", "--help")
        seconds.append(time.perf_counter() - start)
    # 0.08 s on an idle core; a torch import alone takes several seconds.
    assert min(seconds) < 1.0, seconds


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m accel_bridge backends | true"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("command", ["plugins", "backends", "env"])
def test_json_is_one_document_even_when_a_plugin_prints(
    command: str, tmp_path: Path, python: Python
) -> None:
    (tmp_path / "loud_mod.py").write_text(
        "print('I am loud')\n"
        "from accel_bridge import hookimpl\n"
        "@hookimpl\n"
        "def accel_bridge_backends():\n"
        "    print('LOUD')\n"
        "    return []\n"
    )
    words = [command, "--json"] + (["--no-imports"] if command == "env" else [])
    done = python(
        "-m", "accel_bridge", *words, PYTHONPATH=str(tmp_path), ACCEL_BRIDGE_PLUGINS="loud_mod"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert "LOUD" in done.stderr
