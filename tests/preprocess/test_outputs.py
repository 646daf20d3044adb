"""No file is lost: outputs that are inputs, links, directories, devices, or somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accel_bridge.pretrain.preprocess import inspect_main
from accel_bridge.pretrain.preprocess import run as run_module
from accel_bridge.process import outputs

from .support import TEXTS, write_jsonl
from .test_interruption import BLOCKS, at_block, files

NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]
SKIP = ["--on-error", "skip", "--error-log"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    records = [{"text": f"{i} {TEXTS[i % len(TEXTS)]}"} for i in range(600)]
    return write_jsonl(tmp_path / "a.jsonl", records)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return write_jsonl(tmp_path / "in" / "a.jsonl", [{"text": "1 2 3"}] * 20)


def assert_refused(result, *said: str) -> None:
    assert result.code == 2
    assert result.err.startswith("accel-bridge: error: ") or "\naccel-bridge: error: " in result.err
    assert "evidence:" in result.err
    assert "next:" in result.err
    assert "Traceback" not in result.err
    for text in said:
        assert text in result.err


@pytest.mark.parametrize("link", ["itself", "symbolic", "hard"])
def test_an_error_log_is_never_an_input(tmp_path, numbers, gpt2, link, prepare):
    for victim in (numbers, gpt2.vocab, gpt2.merges):
        log = {"itself": victim}.get(link, tmp_path / f"log-{victim.name}")
        if link == "symbolic":
            log.symlink_to(victim)
        elif link == "hard":
            os.link(victim, log)
        before = victim.read_bytes()
        result = prepare(numbers, *SKIP, log, prefix="o")
        assert_refused(result, "would write over an input")
        assert victim.read_bytes() == before


def test_an_error_log_is_never_somebody_elses_file(tmp_path, numbers, run):
    mine = write_jsonl(tmp_path / "mine.jsonl", [{"file": "x", "text": "years of work"}])
    before = mine.read_bytes()
    argv = ["--input", numbers, "--output-prefix", tmp_path / "o", *NULL, *SKIP]
    assert_refused(run(*argv, mine), "did not make")
    assert mine.read_bytes() == before
    # Its own log of an earlier run is replaced, however often.
    (tmp_path / "in" / "b.jsonl").write_text("bad\n")
    argv[1] = tmp_path / "in"
    for _ in range(3):
        assert run(*argv, tmp_path / "in" / "log.jsonl").code == 0


PLACES = ["directory", "too long", "below a file", "loop", "device", "no directory"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("option", ["--error-log", "--output-prefix"])
def test_impossible_places(tmp_path, numbers, run, place, option):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    where = {
        "directory": tmp_path / "in",
        "too long": tmp_path / ("x" * 250),
        "below a file": tmp_path / "file" / "x",
        "loop": tmp_path / "loop" if option == "--error-log" else tmp_path / "loop" / "x",
        "device": Path("/dev/full") if option == "--error-log" else Path("/dev/full/x"),
        "no directory": tmp_path / "none" / "x",
    }[place]
    if option == "--output-prefix" and place in ("directory", "no directory"):
        return  # a prefix beside a directory, or in a new one, is a good one
    if option == "--error-log" and place == "too long":
        where = tmp_path / ("x" * 300)
    prefix = where if option == "--output-prefix" else tmp_path / "o"
    argv = ["--input", numbers, "--output-prefix", prefix, *NULL]
    result = run(*argv, *(() if option == "--output-prefix" else (*SKIP, where)))
    assert_refused(result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "in", "loop"]


@pytest.mark.parametrize("name", ["o_text_document.bin.partial", "o.preprocess.lock"])
def test_no_link_is_followed(tmp_path, numbers, run, name):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / name).symlink_to(mine)
    assert_refused(run("--input", numbers, "--output-prefix", tmp_path / "o", *NULL), "is a link")
    assert mine.read_text() == "mine"


def test_somebody_elses_index_and_checkpoint_stay(tmp_path, numbers, run):
    for name in ("o_text_document.idx", "o.preprocess.json"):
        (tmp_path / name).write_text("mine")
        result = run("--input", numbers, "--output-prefix", tmp_path / "o", *NULL)
        assert_refused(result, "did not make")
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["directory", "glob"])
def test_output_beside_the_input_is_no_input(
    tmp_path,
    corpus,
    gpt2,
    run,
    monkeypatch,
    given,
):
    directory = tmp_path / "data"
    directory.mkdir()
    corpus.rename(directory / "a.jsonl")
    source = directory if given == "directory" else directory / "*"
    log = directory / "log.jsonl"
    argv = [
        "--input", source, "--output-prefix", directory / "o", *gpt2.flags, *BLOCKS, *SKIP, log,
    ]  # fmt: skip
    assert run(*argv).code == 0
    first = files(directory, "o")
    assert run(*argv).code == 0
    at_block(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(*argv).code == 143
    monkeypatch.undo()
    assert run(*argv, "--resume").code == 0
    assert files(directory, "o") == first


def test_a_refused_second_run_touches_nothing(tmp_path, corpus, gpt2, run, monkeypatch):
    prefix = tmp_path / "ours"
    at_block(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    argv = ["--input", corpus, "--output-prefix", prefix, *gpt2.flags, *BLOCKS]
    assert run(*argv).code == 143
    monkeypatch.undo()
    before = files(tmp_path)
    assert "ours.preprocess.json" in before
    with outputs.OutputLock(f"{prefix}.preprocess.lock", "x"):
        for more in ([], ["--resume"], ["--json-keys", "other"]):
            assert_refused(run(*argv, *more), "another run is writing")
            now = files(tmp_path)
            now.pop("ours.preprocess.lock")
            assert now == before
    assert run(*argv, "--resume").code == 0


@pytest.mark.slow
def test_workers_are_started_when_needed(tmp_path, numbers, run, monkeypatch):
    started = []
    close = run_module.WorkerPool.close
    monkeypatch.setattr(
        run_module.WorkerPool, "close", lambda s: started.append(len(s._processes)) or close(s)
    )
    argv = ["--input", numbers, "--output-prefix", tmp_path / "o", *NULL, "--workers", 1000]
    result = run(*argv)
    assert result.code == 0
    assert started == [1]
    assert "at most" in result.err
    assert run(*argv, "--block-bytes", 20).code == 0
    assert 1 < started[1] <= 4 * len(os.sched_getaffinity(0))


@pytest.mark.parametrize("kind", ["loop", "dangling", "device"])
def test_inputs_that_are_no_files(tmp_path, run, kind):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    source = Path("/dev/zero") if kind == "device" else tmp_path / kind
    result = run("--input", source, "--output-prefix", tmp_path / "o", *NULL)
    assert_refused(result, "an input cannot be read")


@pytest.mark.parametrize(
    "flags",
    [
        ["--vocab-size", "-5"], ["--vocab-size", "0"], ["--vocab-size", "9" * 30],
        ["--workers-to-check", "0"], ["--append-eod", "--null-tokenizer-eod-id", "-2"],
        ["--append-eod", "--null-tokenizer-eod-id", "70000"], ["--partitions", "1000000"],
        ["--workers", "x"], ["--no-such-flag"], ["--on-error", "maybe"],
    ],
)  # fmt: skip
def test_numbers_and_words_that_make_no_sense(tmp_path, numbers, run, flags):
    result = run("--input", numbers, "--output-prefix", tmp_path / "o", *NULL, *flags)
    assert_refused(result)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def shell(words: str, *argv: object) -> subprocess.CompletedProcess[str]:
    """A command with redirections, as a shell runs it."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {words}', "sh", sys.executable, "-m", *map(str, argv)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("words", [">/dev/full", ">&-", "2>/dev/full", "2>&-", "<&-"])
def test_streams_that_are_full_or_closed(tmp_path, numbers, words):
    module = "accel_bridge.pretrain.preprocess"
    found = shell(words, module, "--input", numbers, "--output-prefix", tmp_path / "o", *NULL)
    assert "Traceback" not in found.stderr
    assert "Exception ignored" not in found.stderr
    assert found.returncode == (2 if words.startswith(">") else 0), found.stderr
    # Where nobody could see the answer, nothing is begun.
    there = inspect_main([str(tmp_path / "o_text_document")]) == 0
    assert there == (words != ">&-")


@pytest.mark.parametrize(
    "command", [["accel_bridge", "preprocess"], ["accel_bridge.pretrain.preprocess"]]
)
def test_a_closed_stdin_is_not_an_empty_input(tmp_path, command):
    found = shell("<&-", *command, "--input", "-", "--output-prefix", tmp_path / "p", *NULL)
    assert found.returncode == 2
    assert "standard input is closed" in found.stderr


def test_inspect_on_what_cannot_be_read(tmp_path, numbers, run, capfd, monkeypatch):
    assert run("--input", numbers, "--output-prefix", tmp_path / "o", *NULL).code == 0

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("accel_bridge.pretrain.preprocess._inspect.np.memmap", refuse)
    assert inspect_main([str(tmp_path / "o_text_document")]) == 2
    assert "cannot be read" in capfd.readouterr().err
    for name in ("x", "y"):
        (tmp_path / f"{name}.bin").mkdir()
    (tmp_path / "x.idx").mkdir()
    (tmp_path / "y.idx").symlink_to("y.idx")
    for name in ("x", "y"):
        assert inspect_main([str(tmp_path / name)]) == 2
        assert "is no file" in capfd.readouterr().err
