"""The dispatcher: help, unknown commands, errors in three parts."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from plugin_site import Python, Site

from accel_bridge import __version__
from accel_bridge.apps.cli.main import help_text, main
from accel_bridge.plugins.commands import Command
from accel_bridge.plugins.manager import load_plugins

#: The start of a plugin with one hook; the name of the hook follows.
HOOK = "from accel_bridge.plugin import hookimpl\n@hookimpl\ndef "
ALL = [found.item for found in load_plugins().commands().items]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_explains_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert text == help_text(ALL)
    for command in ALL:
        assert f"  {command.name}" in text
        assert command.summary in text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("command", ALL, ids=lambda command: command.name)
def test_no_line_of_a_help_is_wide(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main([command.name, "--help"])
    text = capsys.readouterr().out
    assert text
    assert [line for line in text.splitlines() if len(line) > 100] == []


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


COMMANDS = """
import sys
from accel_bridge.errors import SelectionError
from accel_bridge.plugin import Command, hookimpl

@hookimpl
def accel_bridge_commands():
    return [
        Command("fail", "fails", "toy_mod:fail", "Test"),
        Command("echo", "echoes", "toy_mod:echo", "Test"),
        Command("gone", "has no function", "toy_mod:gone", "Test"),
        Command("lost", "has no module", "no_such_module:main", "Test"),
    ]

def fail(words):
    raise SelectionError("it broke", evidence=["because", "twice"], next="fix it")

def echo(words):
    print(words)
    return 3
"""


@pytest.fixture
def toy(site: Site) -> Site:
    """A plugin with commands."""
    site.install("toy-pkg", {"toy_mod": COMMANDS}, {"toy": "toy_mod"})
    return site


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("name", "said"), [("gone", "AttributeError: module"), ("lost", "No module named 'no_such")]
)
def test_a_command_that_cannot_be_loaded(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"  {name} " in help_text(found.item for found in load_plugins().commands().items)
    assert main([name]) == 2
    error = capsys.readouterr().err
    assert f"The command '{name}' cannot be loaded" in error
    assert said in error


def test_a_broken_plugin_breaks_neither_help_nor_other_commands(
    toy: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    raises = HOOK + "accel_bridge_commands(): 1 / 0"
    takes = COMMANDS.replace('"fail"', '"env"').replace("toy_mod", "taker_mod")
    toy.install("raiser-pkg", {"raiser_mod": raises}, {"raiser": "raiser_mod"})
    toy.install("taker-pkg", {"taker_mod": takes}, {"taker": "taker_mod"})
    toy.install("broken-pkg", {"broken_mod": "import libxyz"}, {"broken": "broken_mod"})
    assert main(["--help"]) == 0
    captured = capsys.readouterr()
    assert all(f"  {command.name} " in captured.out for command in ALL)
    assert "  env  " in captured.out
    assert "\nTest:\n  echo " in captured.out
    assert "\n  fail " in captured.out
    for line in (
        "plugin 'raiser' (raiser-pkg 1.0) failed at accel_bridge_commands: ZeroDivisionError",
        "plugin 'broken' (broken-pkg 1.0) failed at import",
        "the command name 'env' is taken by plugin 'apps'",
        "the command name 'echo' is taken by plugin 'taker'",
    ):
        assert line in captured.err
    assert main(["plugins"]) == 0
    assert "the command name 'env' is taken by plugin 'apps'" in capsys.readouterr().out
    assert main(["ehco"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'echo'?" in error
    assert "plugin 'broken' (broken-pkg 1.0) failed at import" in error


def test_python_m_accel_bridge_is_the_same_command(python: Python) -> None:
    done = python("-m", "accel_bridge", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, help_text(ALL), "")
    done = python("-m", "accel_bridge", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m accel_bridge backends | true"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
