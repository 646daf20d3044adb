"""Runs that end early: at once, with the reason, old output intact, and resumable."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from accel_bridge.pretrain.preprocess import encoder as encoder_module
from accel_bridge.pretrain.preprocess import run as run_module
from accel_bridge.pretrain.preprocess import writer as writer_module

from .support import TEXTS, write_jsonl

#: Each runs the command whole, and twice or more.
pytestmark = pytest.mark.slow

BLOCKS = ["--block-bytes", 2000, "--workers", 2, "--append-eod"]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(
        tmp_path / "a.jsonl", [{"text": f"{i} {TEXTS[i % len(TEXTS)]}"} for i in range(600)]
    )


def files(directory: Path, prefix: str = "ours") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob(prefix + "*"))}


@pytest.fixture
def whole(tmp_path, corpus, prepare) -> dict[str, bytes]:
    """The output of a run that nothing disturbs, under the names of the disturbed one."""
    assert prepare(corpus, *BLOCKS, prefix="whole").code == 0
    return {name.replace("whole", "ours"): data for name, data in files(tmp_path, "whole").items()}


def at_block(monkeypatch: pytest.MonkeyPatch, number: int, action) -> None:
    """Do ``action`` once when that many blocks have been written."""
    take = run_module.Run._take

    def wrapped(self, finished):
        take(self, finished)
        if self._progress.blocks == number:
            action()

    monkeypatch.setattr(run_module.Run, "_take", wrapped)


@pytest.fixture
def no_children() -> Callable[[], bool]:
    """Says whether a run left no worker behind; torch's compilers start processes at any time."""
    others = set(multiprocessing.active_children())
    return lambda: not set(multiprocessing.active_children()) - others


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_resume_completes_it(
    tmp_path, corpus, whole, monkeypatch, number, no_children, prepare
):
    previous = signal.getsignal(number)
    at_block(monkeypatch, 5, lambda: os.kill(os.getpid(), number))
    start = time.monotonic()
    result = prepare(corpus, *BLOCKS)
    assert time.monotonic() - start < 10
    assert result.code == 128 + number
    assert number.name in result.err
    assert "--resume" in result.err
    assert no_children()
    assert signal.getsignal(number) is previous
    assert not {"ours_text_document.bin", "ours_text_document.idx"} & set(files(tmp_path))

    monkeypatch.undo()
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 0, result.err
    assert "resumed" in result.out
    assert "documents  600" in result.out
    assert files(tmp_path) == whole


def test_old_output_is_untouched_by_an_interrupted_run(tmp_path, corpus, monkeypatch, prepare):
    small = write_jsonl(tmp_path / "b.jsonl", [{"text": "old"}])
    assert prepare(small).code == 0
    old = files(tmp_path)
    at_block(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert prepare(corpus, *BLOCKS).code == 143
    now = files(tmp_path)
    assert {name: now[name] for name in old} == old


def test_a_killed_worker_ends_the_run(tmp_path, corpus, whole, monkeypatch, no_children, prepare):
    encode = encoder_module.BlockEncoder.encode

    def dying(self, block):
        if block.start > 20_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return encode(self, block)

    monkeypatch.setattr(encoder_module.BlockEncoder, "encode", dying)
    result = prepare(corpus, *BLOCKS)
    assert result.code == 2
    assert "a worker process died" in result.err
    assert "SIGKILL" in result.err
    assert no_children()
    monkeypatch.undo()
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 0, result.err
    assert files(tmp_path) == whole


def test_an_exception_in_a_worker_ends_the_run(tmp_path, corpus, monkeypatch, prepare):
    def broken(self, block):
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(encoder_module.BlockEncoder, "encode", broken)
    result = prepare(corpus, *BLOCKS)
    assert result.code == 2
    assert "ZeroDivisionError: injected" in result.err
    assert files(tmp_path) == {}


def start(
    corpus: Path, prefix: Path, flags: list[str], patch: str = "", **popen
) -> subprocess.Popen:
    code = (
        "import os, sys, signal\n"
        "from accel_bridge.pretrain.preprocess import main, run as run_module\n"
        f"{patch}\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    argv = ["--input", corpus, "--output-prefix", prefix, *flags, *BLOCKS]
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, argv)], stderr=subprocess.PIPE, text=True, **popen
    )


def test_after_sigkill_resume_continues_from_the_last_checkpoint(
    tmp_path, corpus, gpt2, whole, prepare
):
    prefix = tmp_path / "ours"
    patch = (
        "run_module.CHECKPOINT_SECONDS = 0\n"
        "take = run_module.Run._take\n"
        "def wrapped(self, finished):\n"
        "    if self._progress.blocks == 6:\n"
        "        self._writers['text'].append(next(iter(finished.result.keys.values())))\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    take(self, finished)\n"
        "run_module.Run._take = wrapped\n"
    )
    process = start(corpus, prefix, gpt2.flags, patch)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, err
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 0, result.err
    assert "resumed" in result.out
    assert files(tmp_path) == whole


def test_workers_do_not_outlive_a_killed_parent(tmp_path, corpus, gpt2):
    patch = (
        "import time\n"
        "def wrapped(self, finished):\n"
        "    print('waiting', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "run_module.Run._take = wrapped\n"
    )
    process = start(corpus, tmp_path / "ours", gpt2.flags, patch)
    assert process.stderr is not None
    while "waiting" not in process.stderr.readline():
        pass
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    process.kill()
    process.wait(timeout=10)
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    process.stderr.close()


def test_a_full_disk_ends_the_run(tmp_path, corpus, gpt2, whole, prepare):
    prefix = tmp_path / "ours"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start(corpus, prefix, gpt2.flags, preexec_fn=limit)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "the output cannot be written" in err
    assert "ours_text_document.idx" not in files(tmp_path)
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 0, result.err
    assert files(tmp_path) == whole


def test_no_index_ever_stands_beside_another_runs_data(tmp_path, corpus, monkeypatch, prepare):
    small = write_jsonl(tmp_path / "b.jsonl", [{"text": "old"}])
    assert prepare(small).code == 0
    replace = os.replace

    def failing(source, target):
        if str(target).endswith(".idx"):
            raise OSError("injected")
        replace(source, target)

    monkeypatch.setattr(writer_module.os, "replace", failing)
    result = prepare(corpus, *BLOCKS)
    assert result.code == 2
    assert "ours_text_document.idx" not in files(tmp_path)
    monkeypatch.undo()
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 2
    assert "without --resume" in result.err


def test_resume_refuses_other_settings(corpus, monkeypatch, prepare):
    at_block(monkeypatch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert prepare(corpus, *BLOCKS).code == 143
    monkeypatch.undo()
    others = [*BLOCKS[:-1], "--resume"]
    result = prepare(corpus, *others)
    assert result.code == 2
    assert "append eod: then True, now False" in result.err
    with open(corpus, "a") as file:
        file.write('{"text": "more"}\n')
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 2
    assert "input: then" in result.err


def test_resume_without_anything_to_resume(corpus, prepare):
    result = prepare(corpus, *BLOCKS, "--resume")
    assert result.code == 2
    assert "nothing to resume" in result.err


def test_resume_keeps_skipped_records_and_their_log(tmp_path, gpt2, run, monkeypatch):
    lines = ["bad" if i % 50 == 7 else f'{{"text": "document {i}"}}' for i in range(600)]
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    log = tmp_path / "errors.jsonl"
    log.write_text('{"file": "of", "line": 1, "key": "an earlier run"}\n')
    argv = [
        "--input", source, "--output-prefix", tmp_path / "ours", *gpt2.flags, *BLOCKS,
        "--on-error", "skip", "--error-log", log,
    ]  # fmt: skip
    at_block(monkeypatch, 4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(*argv).code == 143
    assert "an earlier run" in log.read_text()
    monkeypatch.undo()
    partial = tmp_path / "errors.jsonl.partial"
    partial.write_bytes(partial.read_bytes() + b"lost end of a killed run\n")
    result = run(*argv, "--resume")
    assert result.code == 0, result.err
    assert "skipped    12" in result.out
    numbers = [
        int(line.split('"line": ')[1].split(",")[0]) for line in log.read_text().splitlines()
    ]
    assert numbers == [i + 1 for i in range(600) if i % 50 == 7]


def test_two_runs_do_not_share_an_output(tmp_path, corpus, prepare):
    prefix = tmp_path / "ours"
    writer = writer_module.KeyWriter(f"{prefix}_text_document", run_module.id_type(600))
    result = prepare(corpus, *BLOCKS)
    writer.discard()
    assert result.code == 2
    assert "another run is writing this output" in result.err
