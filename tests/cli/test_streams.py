"""Commands whose streams are closed or full, and Ctrl-C."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from plugin_site import Python, Site

from accel_bridge.apps.cli.parity_record import run_child
from accel_bridge.apps.cli.run import CommandError
from accel_bridge.errors import printable
from accel_bridge.pretrain.preprocess.errors import Interrupted

#: Commands, with PYTHONUNBUFFERED.
COMMANDS = (("--help", ""), ("backends", "1"), ("env --no-imports", ""), ("plugins --json", "1"))


def shell(words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m accel_bridge {words}"
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environ},
    )


@pytest.mark.parametrize(("words", "unbuffered"), COMMANDS)
def test_a_full_stdout(words: str, unbuffered: str) -> None:
    done = shell(f"{words} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr.startswith("accel-bridge: error: What this command prints cannot be")
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_stdout() -> None:
    done = shell("backends >&-")
    assert done.returncode == 2
    assert done.stderr.startswith("accel-bridge: error: The standard output is closed.")


def test_all_streams_closed() -> None:
    assert shell("backends <&- >&- 2>&-").returncode == 2


def test_a_closed_stdin_and_stderr_take_nothing_away() -> None:
    done = shell("backends --json <&- 2>&-")
    assert done.returncode == 0
    assert '"backends"' in done.stdout


def test_a_full_stderr_leaves_the_status() -> None:
    assert shell("nonsense 2> /dev/full").returncode == 2
    done = shell("backends 2> /dev/full", ACCEL_BRIDGE_NONSENSE="1", PYTHONUNBUFFERED="")
    assert (done.returncode, "usable" in done.stdout) == (0, True)


#: A plugin that warns, as a line about what is slow does on a busy machine.
NOISY = """
from accel_bridge.plugin import hookimpl
from accel_bridge.process import log

@hookimpl
def accel_bridge_backends():
    log.warn("noise")
    return []
"""


def test_a_log_that_is_full_leaves_the_status(tmp_path: Path) -> None:
    (tmp_path / "noisy_plugin.py").write_text(NOISY)
    environ = {"PYTHONPATH": str(tmp_path), "ACCEL_BRIDGE_PLUGINS": "noisy_plugin"}
    environ["PYTHONUNBUFFERED"] = ""  # or Python would keep nothing to write at the end
    assert "noise" in shell("backends", **environ).stderr
    assert shell("backends 2> /dev/full", **environ).returncode == 0


def test_a_terminal_of_another_encoding(python: Python) -> None:
    done = python("-m", "accel_bridge", "env", "--no-imports", PYTHONIOENCODING="ascii", RANK="é")
    assert done.returncode == 0
    assert "\\xe9" in done.stdout


@pytest.mark.parametrize("words", ["--help", "backends", "plugins --json", "inspect --help"])
def test_a_variable_that_nobody_knows_is_shown(words: str) -> None:
    done = shell(words, ACCEL_BRIDGE_BAKCEND="cpu")
    assert "warning: ACCEL_BRIDGE_BAKCEND is set but means nothing" in done.stderr
    assert done.stderr.count("BAKCEND") == 1


SLOW = """
import time
def wait():
    while True:
        try:
            time.sleep(60)
        except BaseException:  # as some libraries do in their imports
            pass
"""


@pytest.mark.parametrize("words", [["backends", "--kernels"], ["patches"], ["parity", "kernels"]])
def test_ctrl_c_ends_a_command_whose_library_catches_it(site: Site, words: list[str]) -> None:
    site.install("torch", {"torch": f"{SLOW}\nimport sys\nprint('here', file=sys.stderr)\nwait()"})
    _interrupted(words, site, "here", -signal.SIGINT)


@pytest.mark.parametrize(
    ("module", "library", "status"),
    [("accel_bridge", "pluggy", -signal.SIGINT), ("accel_bridge.process.launch", "torch", 130)],
)
def test_ctrl_c_while_modules_are_imported(
    site: Site, module: str, library: str, status: int
) -> None:
    interrupt = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)"
    site.install(library, {library: interrupt})
    done = subprocess.run(
        [sys.executable, "-m", module, "backends"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site.directory)},
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, "")


def test_ctrl_c_ends_env_and_its_children(site: Site) -> None:
    pid = site.directory / "pid"
    source = f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n{SLOW}\nwait()"
    site.install("torch", {"torch": source})
    _interrupted(["env"], site, "waiting for `import torch`", 128 + signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def _interrupted(words: list[str], site: Site, sign: str, status: int) -> None:
    """Start a command, press Ctrl-C at a sign on stderr, and look at how it ends."""
    child = subprocess.Popen(
        [sys.executable, "-m", "accel_bridge", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site.directory)},
    )
    said = ""
    while sign not in said:
        line = child.stderr.readline()
        assert line, said
        said += line
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    said += child.communicate(timeout=30)[1]
    assert time.monotonic() - began < 2
    assert child.returncode == status
    assert "Traceback" not in said


def test_a_child_that_does_not_hear_ctrl_c_is_killed() -> None:
    """As in `parity record`: the parent alone gets the signal, and the child ignores it."""
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_child([sys.executable, "-c", code])
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 中文 　", "plain é 中文 　"),
        ("\x1b[31mred\x1b]0;t\x07", "\\x1b[31mred\\x1b]0;t\\x07"),
        ("a\r\nb\tc", "a\\r\nb\\tc"),
        ("\x9b2J\x7f\u202e\u2028\ud800", "\\x9b2J\\x7f\\u202e\\u2028\\ud800"),
    ],
)
def test_what_acts_on_a_terminal_is_shown(text: str, shown: str) -> None:
    assert printable(text, keep="\n") == shown


def test_an_error_crosses_processes() -> None:
    """Ray pickles what a worker raises, and restarts in a process copy it."""
    for error in (CommandError("It ended.", "a line", "try again", 126), Interrupted(2)):
        for other in (copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
            assert type(other) is type(error)
            assert (str(other), other.exit_code) == (str(error), error.exit_code)
