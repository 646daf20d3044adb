"""The demo's steps: each a command that the user can repeat by hand."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from accel_bridge.apps import plot
from accel_bridge.apps.demo import _runner
from accel_bridge.apps.demo._corpus import write_corpus
from accel_bridge.apps.demo._folder import COMMANDS_FILE, EARLIER, LOG, finish, note, prepare
from accel_bridge.bridge.selection import select
from accel_bridge.errors import BridgeError
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.environment import Settings
from accel_bridge.process.extras import require
from accel_bridge.process.locks import OutputLock
from accel_bridge.process.outputs import mapped, write_output
from accel_bridge.process.progress import FACTS, Iteration, LogReader, Screen, is_wanted
from accel_bridge.process.ranks import be_killed_with_parent
from accel_bridge.process.streams import tell

#: What the demo needs: its modules, and the extras that bring them with all that they need.
MODULES = ("torch", "megatron", "numpy", "orjson", "tokenizers", "matplotlib")
EXTRAS = ("megatron", "preprocess", "report")

VOCABULARY_SIZE = 4096

#: Iterations of learning rate warm-up; fewer where the whole run is short.
WARMUP = 10

#: Seconds that a command has to end by itself after Ctrl-C.
GRACE = 1.0

#: The demo's own tokenizer, by its files.
TOKENIZER = (
    *("--tokenizer-type", "GPT2BPETokenizer"),
    *("--vocab-file", "tokenizer/vocab.json", "--merge-file", "tokenizer/merges.txt"),
)

#: What is printed is seen at once, also through a pipe.
_show = functools.partial(print, flush=True)

#: A GPT of 1.8 million parameters; Megatron's own defaults for everything that is not here.
MODEL = """
--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128
--max-position-embeddings 128 --position-embedding-type rope --swiglu --normalization RMSNorm
--disable-bias-linear --attention-dropout 0 --hidden-dropout 0
--micro-batch-size 8 --global-batch-size 16 --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine
--clip-grad 1.0 --seed 1234 --log-interval 1 --eval-interval 1000
--eval-iters 1 --split 98,1,1 --distributed-backend nccl
""".split()


def run_demo(folder: Path, iterations: int, resumed: int) -> None:
    """Run every step in ``folder``; an earlier demo there goes when this one is whole.

    :param iterations: of the first training run.
    :param resumed: iterations after the resume.
    :raises BridgeError: something is missing, the folder is not the demo's, or a step failed.
    """
    require(*MODULES, extras=EXTRAS)
    with mapped(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        with OutputLock(folder, "--out"):
            prepare(folder, (iterations, iterations + resumed))
            try:
                _run_steps(folder, iterations, resumed)
            except BaseException:
                if (folder / EARLIER).exists():
                    tell(f"note: the earlier demo is in {folder / EARLIER}")
                raise
            finish(folder)


def _run_steps(folder: Path, iterations: int, resumed: int) -> None:
    settings = Settings.from_environ()
    selection = select(load_plugins(settings.plugins), settings)
    _show(f"Backend: {selection.why}\nEverything is written to {folder}{os.sep}\n")
    total = iterations + resumed
    # Commands run in the folder, so that commands.sh can be moved with it.
    shared = [
        *MODEL,
        *("--lr-warmup-iters", str(min(WARMUP, total // 2))),
        *("--data-path", "corpus_text_document", *TOKENIZER),
        *("--data-cache-path", "cache", "--train-iters", str(total)),
        *("--ckpt-format", "torch_dist", "--save-interval", str(total)),
        *("--save", "checkpoint", "--load", "checkpoint"),
    ]
    first = Command(folder, _pretrain([*shared, "--exit-interval", str(iterations)]), early=True)
    try:
        documents, size = write_corpus(folder / "corpus.jsonl")
        _show(f"1. Text: {documents} sources of Python's standard library, {size / 1e6:.1f} MB")
        _show("2. Tokenizer, a byte-level BPE:")
        note(folder, "rm -rf tokenizer  # so that it is learned again: none is written over")
        words = ["tokenizer", "train", "--input", "corpus.jsonl", "--output", "tokenizer"]
        _run(Command(folder, [*words, "--vocab-size", str(VOCABULARY_SIZE)]))
        _show("3. Data set:")
        words = ["preprocess", "--input", "corpus.jsonl", "--output-prefix", "corpus"]
        _run(Command(folder, [*words, *TOKENIZER, "--append-eod"]))
    except BaseException:
        first.end()
        raise
    _show(f"4. Training, stopped with a checkpoint after {iterations} of {total} iterations:")
    note(folder, "rm -rf checkpoint  # so that it trains again, from the beginning")
    points = _train(first)
    _show("5. The same command resumes from the checkpoint:")
    points += _train(Command(folder, _pretrain(shared)))
    last = points[-1].number if points else 0
    if last != total:
        raise BridgeError(
            "The resumed run did not reach its last iteration.",
            evidence=f"last logged iteration: {last} of {total}",
            next=f"read {folder / LOG}",
        )
    run = plot.read_run(folder / LOG, "loss")
    over = plot.window([run])
    title = f"GPT on {selection.chosen.title}: Python's own sources"
    picture = plot.draw([run], over, title=title, marks=[(iterations, "checkpoint, resumed")])
    write_output(folder / "loss.png", picture)
    mean = f" (mean of the last {plot.tail(over)})" if over > 1 else ""
    milliseconds = 1000 * (run.seconds or 0)
    _show(
        f"\nLoss {run.points[0].loss:.2f} -> {run.loss(over):.2f}{mean} in {total} iterations, "
        f"{milliseconds:.0f} ms each (median)\n"
        f"Loss curve: {folder / 'loss.png'}\nCheckpoint: {folder / 'checkpoint'}\n"
        f"The commands, to repeat by hand: {folder / COMMANDS_FILE}"
    )


def _pretrain(arguments: Sequence[str]) -> list[str]:
    return ["pretrain", "--nproc-per-node", "1", "--", *arguments]


def _train(command: Command) -> list[Iteration]:
    """Train; the logged iterations. The whole log goes to training.log."""
    points: list[Iteration] = []
    reader = LogReader()
    screen = Screen(sys.stderr, only_line=True) if is_wanted(default=True) else None
    with (command.folder / LOG).open("a", encoding="utf-8") as log:

        def follow(line: str) -> None:
            log.write(line)
            found = reader.read(line)
            if found is not None:
                fresh = not points or points[-1].number != found.number
                if fresh:
                    points.append(found)
                if screen is None and fresh:
                    _show_tenth(found)
            if screen is not None:
                screen.feed(line)

        try:
            _run(command, follow)
        finally:
            if screen is not None:
                screen.close(0)
    return points


def _show_tenth(found: Iteration) -> None:
    """Where no terminal shows a line that moves, every tenth iteration has one."""
    if found.seconds and (found.number == found.of or found.number % 10 == 0):
        _show(
            f"   iteration {found.number}/{found.of}  loss {found.loss:.3f}  "
            f"{1000 * found.seconds:.0f} ms"
        )


class Command:
    """A command of ``accel-bridge`` that runs in the demo's folder.

    :param words: after ``accel-bridge``.
    :param early: it is a training run that is started at once, and waits for :meth:`go`.
    """

    def __init__(self, folder: Path, words: Sequence[str], early: bool = False) -> None:
        self.folder = folder
        self.words = list(words)
        self._early = early
        self._process: subprocess.Popen[str] | None = None
        if early:
            self._start([self.words[0], "--runner", _runner.__name__, *self.words[1:]])

    def go(self) -> subprocess.Popen[str]:
        """Let it do its work."""
        if self._process is None:
            self._start(self.words)
        assert self._process is not None
        if self._early:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # it has failed, and says why
                self._process.stdin.write(_runner.GO)
                self._process.stdin.flush()
        return self._process

    def end(self) -> None:
        """End it when it is no longer wanted, at once if it does not by itself."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            assert process.stdout is not None
            process.stdout.close()

    def _start(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "accel_bridge", *words],
            stdin=subprocess.PIPE if self._early else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.folder,
            env={**os.environ, FACTS: "1"},
            preexec_fn=be_killed_with_parent,
        )


def _run(command: Command, follow: Callable[[str], None] | None = None) -> None:
    """Run one command to its end; its output goes to ``follow``, or is shown.

    :raises BridgeError: it failed; with its last lines.
    """
    line = shlex.join(["accel-bridge", *command.words])
    note(command.folder, line)
    _show(f"   $ {line if len(line) < 200 else line[:200] + ' ...'}")
    last: deque[str] = deque(maxlen=15)
    try:
        process = command.go()
        assert process.stdout is not None
        for output in process.stdout:
            last.append(output.rstrip())
            if follow is None:
                _show(f"   {output}", end="")
            else:
                follow(output)
        status = process.wait()
    except BaseException:
        command.end()
        raise
    if status != 0:
        raise BridgeError(
            f"`accel-bridge {command.words[0]}` failed with status {status}.",
            evidence=list(last),
            next=f"repeat it by hand: the last line of {command.folder / COMMANDS_FILE}",
        )
