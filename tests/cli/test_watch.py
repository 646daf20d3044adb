"""The watcher of a command: which processes it takes for the command's, and what it makes of
them.
"""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from accel_bridge.process import child
from accel_bridge.process.bootstrap import accel_bridge_hook
from accel_bridge.process.child import BOOTSTRAP, Tree, _why, environment

TORCH = "7f00-7f01 r-xp 00000000 fd:00 1 /site/torch/lib/libtorch_cpu.so\n"


class Machine:
    """A directory like /proc."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def process(
        self, pid: int, parent: int, *, stack: int, torch: bool = False, words: str = "python\0a.py"
    ) -> None:
        place = self.directory / str(pid)
        place.mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 23, str(stack), "0"]
        (place / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
        (place / "maps").write_text(TORCH if torch else "")
        (place / "cmdline").write_text(f"{words}\0")
        (place / "environ").write_text(f"PYTHONPATH={BOOTSTRAP}\0A=b=c\0")
        (place / "exe").unlink(missing_ok=True)
        (place / "exe").symlink_to("/usr/bin/python3.12")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.process(10, 1, stack=100)
    return made


def test_a_process_that_was_reached_is_none_of_them_nor_are_its_forks(machine: Machine) -> None:
    machine.process(11, 10, stack=110, torch=True)
    machine.process(12, 11, stack=110, torch=True)
    machine.process(13, 11, stack=130, torch=True)
    tree = Tree(10, machine.directory)
    tree.reached(11)
    assert list(tree.unreached()) == [13]


def test_a_process_that_ends_in_between_is_no_error(machine: Machine) -> None:
    tree = Tree(10, machine.directory)
    (machine.directory / "11").mkdir()
    assert list(tree.unreached()) == []
    assert "process 11 uses PyTorch" in tree.describe(11)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("python -I a.py", "-I"),
        ("python -Ic pass", "-I"),
        ("python -X dev -u -S a.py", "-S"),
        ("python -Xdev -E -m a", "-E"),
        ("python -W ignore a.py -I", "another sitecustomize"),
        ("python -c -I", "another sitecustomize"),
        ("python -m module -S", "another sitecustomize"),
        ("python --check-hash-based-pycs always -I x", "another sitecustomize"),
    ],
)
def test_the_reason_is_read_from_the_options_before_the_program(line: str, reason: str) -> None:
    assert reason in _why(line.split(), {"PYTHONPATH": f"{BOOTSTRAP}:/x"})


def test_a_cleared_path_is_a_reason() -> None:
    assert "cleared the environment" in _why(["python", "a.py"], {})
    assert "cleared PYTHONPATH" in _why(["python", "a.py"], {"ACCEL_BRIDGE_AUTO": "1"})


def test_strangers_are_not_heard() -> None:
    """Nor do they end the watcher: its last line still comes."""
    code = "import os; print(os.environ['_ACCEL_BRIDGE_WATCH'], flush=True); input()"
    words = ["-m", "accel_bridge", "run", "--", sys.executable, "-c", code]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *words], text=True, **pipes) as process:
        _, place = process.stdout.readline().split()
        assert os.stat(os.path.dirname(place)).st_mode & 0o777 == 0o711
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            for text in (b"junk", b"0", b"-1", b"junk 12", b"junk 0", b"", b"\xff" * 64):
                stranger.sendto(text, place)
        _, said = process.communicate("\n", timeout=30)
    assert "the bridge was not needed" in said
    assert not os.path.exists(os.path.dirname(place))


def test_without_a_directory_for_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(child.os.path, "isdir", lambda directory: False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hooks:
        place = child._bind(hooks)
        hooks.setblocking(False)
        monkeypatch.setenv(child.WATCH, f"word {place}")
        accel_bridge_hook._tell()
        assert list(child._Messages(hooks, "word").read()) == [os.getpid()]


def test_the_hook_reaches_it_from_another_network_namespace() -> None:
    apart = ["unshare", "-n"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("no network namespace can be made here")
    code = "import accel_bridge_hook as hook; hook.stand_down()"
    words = ["-m", "accel_bridge", "run", "--", *apart, sys.executable, "-c", code]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, timeout=60
    )
    assert "the bridge was not needed" not in done.stderr  # the watcher has heard it
    assert done.stderr == ""


OLD = ("2.7", "3.6")


def old_python(version: str) -> str:
    found = [str(path) for path in Path.home().glob(f".pyenv/versions/{version}*/bin/python")]
    for python in (*found, f"python{version}"):
        if shutil.which(python) and not subprocess.run([python, "-c", ""], check=False).returncode:
            return python
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("version", OLD)
def test_an_old_python_below_a_command_is_silent(version: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    environ = environment({**os.environ, "PYTHONPATH": str(tmp_path)})
    words = [old_python(version), "-c", "print('code')"]
    done = subprocess.run(
        words, capture_output=True, text=True, env=environ, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("theirs\ncode\n", "")


def test_every_python_can_read_what_stands_before_its_sitecustomize() -> None:
    tree = ast.parse((BOOTSTRAP / "sitecustomize.py").read_text(), feature_version=(3, 4))
    later = (ast.AnnAssign, ast.JoinedStr, ast.NamedExpr, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        assert not isinstance(node, later)
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
        assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
