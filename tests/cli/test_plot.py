"""``accel-bridge plot``: what it reads, what it says, and what it makes of bad input."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest
from parity.made import recording as made_recording
from progress.test_lines import FSDP2, MINDSPEED, OLD, SWIFT

from accel_bridge import recording
from accel_bridge.apps import plot
from accel_bridge.apps.cli.plot import main
from accel_bridge.apps.plot import Point, Run
from accel_bridge.errors import BridgeError

#: A curve that goes down by a hundredth an iteration, in the words of a log.
ARGUMENTS = "  seq_length ...................................... 1024\n"


def line(number: int, form: str = OLD) -> str:
    text = form.replace("12/", f"{number}/").replace("8.349537E+00", f"{8 - number / 100:.6E}")
    return text.replace("8.349537", f"{8 - number / 100}")


def log(path: Path, first: int, last: int, form: str = OLD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [line(number, form) for number in range(first, last + 1)]
    path.write_text(ARGUMENTS + "noise\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("form", [OLD, MINDSPEED, FSDP2, SWIFT])
def test_logs_of_all_kinds(tmp_path: Path, form: str) -> None:
    run = plot.read_run(log(tmp_path / "a.log", 1, 20, form))
    assert [point.iteration for point in run.points] == list(range(1, 21))
    assert [point.loss for point in run.points] == pytest.approx(
        [8 - n / 100 for n in range(1, 21)]
    )
    assert run.seconds == pytest.approx(0.25)
    if "global batch" in form:
        assert run.median("tokens") == pytest.approx(16 * 1024 / 0.25)


def test_the_logs_of_a_directory_are_one_run_and_the_later_counts(tmp_path: Path) -> None:
    log(tmp_path / "train-1.log", 1, 10)
    later = log(tmp_path / "train-2.log", 8, 12)
    later.write_text(later.read_text().replace("lm loss: 7.9", "lm loss: 3.9"))
    (tmp_path / "other.txt").write_text("notes\n")
    run = plot.read_run(tmp_path)
    assert [point.iteration for point in run.points] == list(range(1, 13))
    assert run.points[7].loss == pytest.approx(3.92)
    assert run.notes == ("3 iterations were trained again after a resume: the later ones count",)


def test_a_recording(tmp_path: Path) -> None:
    made = made_recording(arguments={"global_batch_size": 4, "seq_length": 8})
    recording.write(made, tmp_path / "a.rec")
    run = plot.read_run(tmp_path / "a.rec")
    assert [point.loss for point in run.points] == [4.9, 4.8, 4.7, 4.6]
    assert run.median("tokens") == pytest.approx(320)


def scalars(directory: Path, **values: list[float]) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(directory)
    for tag, numbers in values.items():
        for step, number in enumerate(numbers, 1):
            writer.add_scalar(tag.replace("_", " "), number, step, walltime=100.0 + step / 2)
    writer.close()
    return directory


def test_a_tensorboard_directory(tmp_path: Path) -> None:
    scalars(tmp_path / "tb", lm_loss=[3, 2, 1], lm_loss_vs_samples=[3, 2, 1], grad_norm=[1, 1, 1])
    for path in (tmp_path, tmp_path / "tb", next((tmp_path / "tb").iterdir())):
        run = plot.read_run(path)
        assert [point.loss for point in run.points] == [3, 2, 1]
        assert run.seconds == pytest.approx(0.5)


def test_tensorboard_directories_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match="holds no training loss") as none:
        plot.read_run(scalars(tmp_path / "none", grad_norm=[1.0]))
    assert "grad norm" in none.value.evidence[0]
    scalars(tmp_path / "two" / "x", lm_loss=[1.0])
    scalars(tmp_path / "two" / "y", lm_loss=[1.0])
    with pytest.raises(BridgeError, match="several runs") as several:
        plot.read_run(tmp_path / "two")
    assert "two/x" in several.value.next
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "events.out.tfevents.1").write_bytes(b"\x18\x00\x00garbage")
    with pytest.raises(BridgeError, match=r"holds no training loss|cannot read"):
        plot.read_run(broken)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "There is no"),
        (b"", "holds no training run"),
        (b"hello\nworld\n", "holds no training run"),
        (bytes(range(256)) * 50, "holds no training run"),
        (b"iteration 5/10 |", "holds no training run"),
        (recording.MAGIC + b"broken", "."),
    ],
)
def test_a_log_that_is_none(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / "x.log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BridgeError, match=what):
        main([str(path)])


def test_runs_of_different_length_are_compared_where_both_have_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(log(tmp_path / "a.log", 1, 30)), str(log(tmp_path / "b.log", 1, 20))]
    assert main([*paths, "--names", "one,two", "--smooth", "1"]) == 0
    shown = capsys.readouterr().out
    assert "loss - A at 20" in shown
    assert re.search(r"B +two +20 +7\.8000 .*\+0\.0000 +1\.000", shown)
    assert main([*paths, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["compared_at"] == 20
    assert [run["iterations"] for run in document["runs"]] == [30, 20]
    assert document["runs"][0]["points"][0] == [1, 7.99, 0.25, 65536.0, 41.5]


def test_picture_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, png, page = log(tmp_path / "<a>.log", 1, 30), tmp_path / "x.png", tmp_path / "x.html"
    words = [str(path), "--png", str(png), "--html", str(page)]
    assert main(words) == 0
    assert main(words) == 0, "its own files may be replaced"
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "data:image/png;base64," in text
    assert "&lt;a&gt;.log" in text
    assert "<a>" not in text, "a name from a file is text"
    assert not re.findall(r'(?:src|href)="(?!data:)', text), "the page needs no other file"
    for taken in (path, tmp_path / "mine"):
        taken.touch()
        (tmp_path / "mine").write_text("mine")
        with pytest.raises(BridgeError, match="would write over"):
            main([str(path), "--png", str(taken)])


def test_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table needs nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = str(log(tmp_path / "a.log", 1, 30))
    assert main([path]) == 0
    assert "iterations" in capsys.readouterr().out
    with pytest.raises(BridgeError, match="matplotlib is not installed"):
        main([path, "--png", str(tmp_path / "x.png")])


@pytest.mark.parametrize("losses", [[math.nan] * 4, [2.5], [5.0, 4.0, math.nan, 1e35], [3.0] * 50])
def test_every_run_has_a_picture(losses: list[float]) -> None:
    run = Run("$x$ & <y>", tuple(Point(n, loss, 0.5) for n, loss in enumerate(losses, 1)))
    assert plot.draw([run, run], 3, marks=[(1, "resumed")]).startswith(b"\x89PNG")


def test_pairs_are_a_row_for_each_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of the adaptor of 2023: two machines side by side, compared where both were."""
    files = [
        log(tmp_path / f"{name}.log", 1, last)
        for name, last in (("a", 20), ("b", 20), ("c", 9), ("d", 7))
    ]
    files[1].write_text(files[1].read_text().replace("7.800000E+00", "7.850000E+00"))
    words = ["--pairs", "GPU,NPU", "--names", "bert,t5", "--smooth", "1"]
    assert main([*map(str, files), *words]) == 0
    table = capsys.readouterr().out
    assert re.search(r"loss GPU.*loss NPU.*s/step GPU.*s/step NPU.*loss NPU - GPU", table)
    assert re.search(r"bert.*7\.8000.*7\.8500.*0\.25.*0\.25.*\+0\.0500", table)
    assert re.search(r"t5.*7\.9300.*7\.9300.*\+0\.0000", table)
