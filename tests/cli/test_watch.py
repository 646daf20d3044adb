"""The companion of a command: which processes it takes for the command's, and what it makes of
them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_bridge._child import BOOTSTRAP
from accel_bridge._watch import Tree, _why

TORCH = "7f00-7f01 r-xp 00000000 fd:00 1 /site/torch/lib/libtorch_cpu.so\n"


class Machine:
    """A folder like /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(
        self, pid: int, parent: int, *, stack: int, torch: bool = False, words: str = "python\0a.py"
    ) -> None:
        place = self.folder / str(pid)
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


def test_only_descendants_count_and_each_once(machine: Machine) -> None:
    machine.process(11, 12, stack=110, torch=True)  # a grandchild with the smaller number
    machine.process(12, 10, stack=120)
    machine.process(99, 1, stack=990, torch=True)
    tree = Tree(10, machine.folder)
    assert list(tree.unreached()) == [11]
    assert list(tree.unreached()) == []


def test_a_process_that_was_reached_is_none_of_them_nor_are_its_forks(machine: Machine) -> None:
    machine.process(11, 10, stack=110, torch=True)
    machine.process(12, 11, stack=110, torch=True)
    machine.process(13, 11, stack=130, torch=True)
    tree = Tree(10, machine.folder)
    tree.reached(11)
    assert list(tree.unreached()) == [13]


def test_the_command_itself_counts(machine: Machine) -> None:
    machine.process(10, 1, stack=100, torch=True)
    assert list(Tree(10, machine.folder).unreached()) == [10]


def test_torch_that_comes_later_is_noticed(machine: Machine) -> None:
    tree = Tree(10, machine.folder)
    machine.process(11, 10, stack=110)
    assert list(tree.unreached()) == []
    machine.process(11, 10, stack=110, torch=True)
    assert list(tree.unreached()) == [11]


def test_a_process_that_ends_in_between_is_no_error(machine: Machine) -> None:
    tree = Tree(10, machine.folder)
    (machine.folder / "11").mkdir()
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
