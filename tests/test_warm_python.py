"""The warm Python is used like any Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm_python
from processes import ends

from accel_bridge.recording import Plan

#: What tells two interpreters apart, as far as a program can see.
SHOW = """
import json, os, sys, warnings
print(json.dumps([sys.argv, sys.path, os.getcwd(), sys.stdin.read(), sys.warnoptions,
    __name__, sorted(globals()), os.environ["WORD"], sorted(os.environ)]))
print("to stderr", file=sys.stderr)
sys.exit(7)
"""


def environment() -> dict[str, str]:
    """As it was when the server started: another test may have set a variable since."""
    return {**(warm_python.started_with or os.environ), "OMP_NUM_THREADS": "1"}


def run(python: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environ = {**environment(), **options.pop("env", {})}
    return subprocess.run(
        [python, *words], env=environ, capture_output=True, text=True, timeout=100, **options
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """:data:`SHOW` as a file, which is a module too."""
    path = tmp_path / "show.py"
    path.write_text(SHOW)
    return path


@pytest.mark.parametrize("words", ["show.py", "-m show", "-u -m show", "-Wignore -Wonce -c"])
def test_a_program_sees_what_it_sees_in_a_new_interpreter(
    words: str, script: Path, warm: str
) -> None:
    command = [*words.split(), SHOW] if words.endswith("-c") else words.split()
    environ = {"WORD": "Straße", "PYTHONPATH": "/a:b", "PYTHONWARNINGS": "ignore,once"}
    options = {"cwd": script.parent, "input": "line", "env": environ}
    new = run(sys.executable, *command, "--flag", **options)
    forked = run(warm, *command, "--flag", **options)
    assert json.loads(forked.stdout) == json.loads(new.stdout)
    assert (forked.stderr, forked.returncode) == ("to stderr\n", 7)


def test_nothing_that_is_tested_was_imported_before(warm: str) -> None:
    code = "import sys; print([name.split('.')[0] for name, one in sys.modules.items() if one])"
    names = eval(run(warm, "-c", code).stdout)
    assert {"torch", "wandb"} <= set(names)
    assert not {"megatron", "accel_bridge", "transformer_engine", "torch_npu"} & set(names)


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        (("-X", "utf8", "-c"), {}),
        (("-c",), {"OMP_NUM_THREADS": "3"}),
        (("-c",), {"LD_LIBRARY_PATH": "/nowhere"}),
        (("-c",), {"PYTHONHASHSEED": "1"}),
    ],
)
def test_what_a_fork_cannot_follow_gets_a_new_interpreter(
    words: tuple[str, ...], environ: dict[str, str], warm: str
) -> None:
    code = "import sys; print(sys.executable, 'torch' in sys.modules)"
    done = run(warm, *words, code, env=environ)
    assert done.stdout == f"{sys.executable} False\n", done.stderr


#: What is there when a script begins, and each patch's state after Megatron's import.
BEGUN = """
import json, os, sys
begun = "megatron" in sys.modules
if len(sys.argv) > 1:
    sys.exit(f"begun {begun}")
import megatron.training.training
from accel_bridge.bridge.activation import current
patches = {status.patch.id: [status.state.value, status.reason] for status in current().statuses}
print(json.dumps([begun, sorted(os.environ), patches]))
"""


@pytest.fixture
def begun(tmp_path: Path) -> str:
    """:data:`BEGUN` as a file."""
    path = tmp_path / "begun.py"
    path.write_text(BEGUN)
    return str(path)


def test_an_active_one_has_the_bridge_that_a_training_would_activate(begun: str, warm: str) -> None:
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "ACCEL_BRIDGE_PLUGINS": "", "RANK": "0"}
    found = []
    for python in (warm, warm_python.interpreter(active=True)):
        done = run(python, "-m", "accel_bridge.run", begun, env=environ)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert [one[0] for one in found] == [False, True]
    assert found[0][1:] == found[1][1:]


@pytest.mark.megatron
def test_a_recording_begins_with_its_patches(begun: str) -> None:
    words = ["-m", "accel_bridge.apps.record", Plan("").as_word(), begun]
    done = run(warm_python.interpreter(active=True), *words)
    is_there, _, patches = json.loads(done.stdout.splitlines()[-1])
    assert (is_there, patches["record-step"][0]) == (True, "applied")


@pytest.mark.megatron
@pytest.mark.parametrize(
    "environ",
    [{"ACCEL_BRIDGE_PATCHES": "-rope"}, {"NVTE_FUSED_ATTN_BACKEND": "1"}, {"PYTHONPATH": "/a"}],
)
def test_it_is_not_active_where_the_environment_may_change_it(
    environ: dict[str, str], begun: str
) -> None:
    python = warm_python.interpreter(active=True)
    done = run(python, "-m", "accel_bridge.run", begun, "--no-more", env=environ)
    assert done.stderr.endswith("begun False\n")


#: Says who it is, also that it was asked to end, and has a child.
WAIT = """
import os, signal, sys, time
# Written past the buffer, in which the signal may find the program.
signal.signal(signal.SIGTERM, lambda *unused: os.write(1, b"asked\\n") and sys.exit(5))
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
time.sleep(60)
"""


def waiting(warm: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A program that waits, and its two processes."""
    program = subprocess.Popen(
        [warm, "-c", WAIT], env=environment(), stdout=subprocess.PIPE, text=True
    )
    return program, [int(word) for word in program.stdout.readline().split()]


def test_signals_are_passed_on(warm: str) -> None:
    program, processes = waiting(warm)
    os.kill(processes[1], signal.SIGKILL)
    program.send_signal(signal.SIGTERM)
    output, _ = program.communicate(timeout=30)
    assert (output, program.returncode) == ("asked\n", 5)


def test_a_program_that_is_killed_takes_its_children_along(warm: str) -> None:
    """As a time-out of the tests does it."""
    program, processes = waiting(warm)
    program.kill()
    program.communicate(timeout=30)
    assert all(ends(process, 10) for process in processes)
