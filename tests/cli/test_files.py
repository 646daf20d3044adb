"""What commands write takes the place of nothing but an earlier result of theirs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from parity.made import recording

from accel_bridge.apps.cli.main import main
from accel_bridge.process.outputs import OutputError, check_output, write_output
from accel_bridge.recording import write

MARK = b"made by this test"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two recordings."""
    for name in ("a.rec", "b.rec"):
        write(recording(), tmp_path / name)
    return str(tmp_path / "a.rec"), str(tmp_path / "b.rec")


@pytest.mark.parametrize("option", ["--png", "--html"])
@pytest.mark.parametrize("kind", ["input", "linked input", "text", "recording", "directory"])
def test_compare_writes_over_nothing(
    files: tuple[str, str],
    tmp_path: Path,
    option: str,
    kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    if kind == "input":
        out = Path(files[1])
    elif kind == "linked input":
        os.link(files[0], out)
    elif kind == "text":
        out.write_text("a thesis")
    elif kind == "recording":
        write(recording(), out)
    else:
        out.mkdir()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert main(["parity", "compare", *files, option, str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("accel-bridge: error: ")
    assert "evidence:" in error
    assert "next:" in error
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}


def test_two_outputs_of_one_name(files: tuple[str, str], tmp_path: Path) -> None:
    out = str(tmp_path / "x")
    assert main(["parity", "compare", *files, "--png", out, "--html", out]) == 2
    assert not Path(out).exists()


def test_record_writes_over_nothing_but_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("a thesis")
    assert main(["parity", "record", "--out", str(tmp_path / "notes.txt"), "--", "--x"]) == 2
    assert "--out would write over a file that this command did not make" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "a thesis"


def test_a_name_from_a_variable_that_is_not_set() -> None:
    with pytest.raises(OutputError, match="--png is empty"):
        check_output("", option="--png")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_output(out, MARK + b"1", option="--out")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OutputError, match="cannot be written"):
        write_output(out, MARK + b"2", option="--out")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [MARK + b"1"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    out, target = tmp_path / "link", tmp_path / "target"
    out.symlink_to(target)
    for number in (b"1", b"2"):
        write_output(out, MARK + number, option="--out")
    assert out.is_symlink()
    assert target.read_bytes() == MARK + b"2"


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
def test_a_disk_that_takes_names_alone_is_refused_before_the_work(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.png"
    if there:
        out.write_bytes(MARK)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match="cannot be written") as caught:
        check_output(out, option="--png", made=(MARK,))
    assert caught.value.next.startswith("make room")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == (["x.png"] if there else [])


@pytest.mark.parametrize(
    "command", [["--", "./nope.sh"], ["--", "false"], ["nope.py"], ["--", "--"]], ids=" ".join
)
def test_a_command_that_fails_leaves_an_old_recording(
    files: tuple[str, str], command: list[str]
) -> None:
    before = Path(files[0]).read_bytes()
    words = [sys.executable, "-m", "accel_bridge", "run", "--record", files[0], *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert Path(files[0]).read_bytes() == before
