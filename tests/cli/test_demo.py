"""``accel-bridge demo``: its directory, its counts, and the ways in which it may end early."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel_bridge.apps.cli import demo
from accel_bridge.apps.cli.demo import COMMANDS_FILE, main, note, prepare
from accel_bridge.errors import BridgeError


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def earlier_demo(directory: Path) -> Path:
    directory.mkdir()
    prepare(directory)
    for name in ("corpus.jsonl", "tokenizer/vocab.json", "checkpoint/iter_0000150/x", "mine.txt"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("made")
    return directory


def test_nothing_of_an_earlier_demo_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = earlier_demo(tmp_path / "demo")
    whole = snapshot(directory)
    for number in (1, 2):
        (directory / "training.log").write_text(f"died {number}")
        prepare(directory)
        assert f"demo.{number}" in capsys.readouterr().err
        assert list(snapshot(directory)) == [COMMANDS_FILE]
    assert snapshot(tmp_path / "demo.1") == {**whole, "training.log": b"died 1"}
    assert list(snapshot(tmp_path / "demo.2")) == [COMMANDS_FILE, "training.log"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("commands.sh", "#!/bin/sh\nmake\n"),
        ("commands.sh", ""),
        ("thesis.tex", "years of work"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, name: str, text: str) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / name).write_text(text)
    before = snapshot(directory)
    with pytest.raises(BridgeError, match="files that no demo made"):
        prepare(directory)
    assert snapshot(directory) == before


def test_links_are_moved_and_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "weights").write_text("mine")
    directory = earlier_demo(tmp_path / "demo")
    (directory / "loss.png").symlink_to(mine / "weights")
    (directory / "merges.txt").symlink_to("merges.txt")
    prepare(directory)
    assert (mine / "weights").read_text() == "mine"


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5", "", "9" * 400, "1000001"])
def test_counts_that_make_no_sense(tmp_path: Path, count: str) -> None:
    with pytest.raises(BridgeError, match="command line") as error:
        main(["--out", str(tmp_path / "x"), f"--iterations={count}"])
    assert "number from 1" in error.value.evidence[0]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(("total", "warmup"), [(2, 1), (8, 4), (20, 10), (200, 10)])
def test_few_iterations_have_a_short_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, warmup: int
) -> None:
    """Megatron asserts that the warm-up is shorter than the whole run."""
    given: list[list[str]] = []
    monkeypatch.setattr(demo, "_run", lambda directory, argv, follow=None: given.append(argv))
    monkeypatch.setattr(demo, "write_corpus", lambda path: (1, 1))
    with pytest.raises(BridgeError, match="last iteration"):
        demo.run_demo(tmp_path, 1, total - 1)
    words = next(words for words in given if words[0] == "pretrain")
    assert words[words.index("--lr-warmup-iters") + 1] == str(warmup)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "demo" / "corpus.jsonl"))

    monkeypatch.setattr(demo, "write_corpus", full)
    with pytest.raises(BridgeError, match="cannot be written") as error:
        main(["--out", str(tmp_path / "demo")])
    assert "make room" in error.value.next


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    """Even in the middle of a command that does not listen."""
    code = (
        "import subprocess, sys, types\n"
        "from accel_bridge.apps.cli import demo\n"
        "from accel_bridge.apps.cli.main import main\n"
        "deaf = 'import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)'\n"
        "own = types.SimpleNamespace(**vars(subprocess))\n"
        "own.Popen = lambda c, **k: subprocess.Popen([sys.executable, '-c', deaf], **k)\n"
        "demo.subprocess = own\n"
        "demo.write_corpus = lambda path: (1, 1)\n"
        "sys.exit(main(['demo', '--out', sys.argv[1]]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "demo")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.stdout.readline().strip() != "1":
        pass
    process.send_signal(number)
    began = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 5  # 2 s on a machine that is not shared
    assert process.returncode == 128 + number
    assert "accel-bridge: error: The demo was interrupted." in err
    assert "Traceback" not in err


@pytest.mark.parametrize("model", sorted(demo.MODELS))
def test_the_model_that_is_asked_for_is_trained(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[list[str]] = []
    monkeypatch.setattr(demo, "write_corpus", lambda path: (1, 1))
    monkeypatch.setattr(demo, "_run", lambda *given: None)
    monkeypatch.setattr(demo, "_train", lambda directory, argv: trained.append(argv) or [])
    with pytest.raises(BridgeError, match="did not reach its last iteration"):
        main(["--out", str(tmp_path / "demo"), "--model", model])
    for argv in trained:
        assert argv[:3] == ["pretrain", "--model", model]
        assert ("--hybrid-layer-pattern" in argv) is (model == "hybrid")


def test_commands_can_be_repeated_from_anywhere(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    directory.mkdir()
    prepare(directory)
    note(directory, "pwd > where")
    elsewhere = subprocess.run(["sh", str(directory / COMMANDS_FILE)], cwd="/", check=True)
    assert elsewhere.returncode == 0
    assert (directory / "where").read_text().strip() == str(directory)
