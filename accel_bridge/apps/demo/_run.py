"""The demo's steps: each a command that the user can repeat by hand."""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from accel_bridge._environment import Settings
from accel_bridge._errors import BridgeError
from accel_bridge._extras import require
from accel_bridge._outputs import OutputLock, mapped
from accel_bridge._plugins import load_plugins
from accel_bridge._selection import select
from accel_bridge.apps.demo._corpus import train_bpe, write_corpus
from accel_bridge.apps.demo._folder import COMMANDS_FILE, prepare
from accel_bridge.apps.demo._training_log import Step, draw_curve, parse_step

#: What the demo needs: its modules, and the extras that bring them with all that they need.
MODULES = ("torch", "megatron", "numpy", "orjson", "tokenizers", "matplotlib")
EXTRAS = ("megatron", "preprocess", "report")

VOCABULARY_SIZE = 4096

#: Iterations of learning rate warm-up; fewer where the whole run is short.
WARMUP = 10

#: Seconds that a command has to end by itself after Ctrl-C.
GRACE = 1.0

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
    """Run every step in ``folder``, which is emptied first when it holds an earlier demo.

    :param iterations: of the first training run.
    :param resumed: iterations after the resume.
    :raises BridgeError: something is missing, the folder is not the demo's, or a step failed.
    """
    require(*MODULES, extras=EXTRAS)
    with mapped(folder, "--out"):
        folder.mkdir(parents=True, exist_ok=True)
        with OutputLock(folder, "--out"):
            prepare(folder, (iterations, iterations + resumed))
            _run_steps(folder, iterations, resumed)


def _run_steps(folder: Path, iterations: int, resumed: int) -> None:
    settings = Settings.from_environ()
    selection = select(load_plugins(settings.plugins), settings)
    _show(f"Backend: {selection.why}\nEverything is written to {folder}{os.sep}\n")
    documents, size = write_corpus(folder / "corpus.jsonl")
    _show(f"1. Text: {documents} sources of Python's standard library, {size / 1e6:.1f} MB")
    vocab, merges = train_bpe(folder / "corpus.jsonl", folder, VOCABULARY_SIZE)
    _show(f"2. Tokenizer: a byte-level BPE of {VOCABULARY_SIZE} tokens trained on it")
    tokenizer = ["--tokenizer-type", "GPT2BPETokenizer"]
    tokenizer += ["--vocab-file", str(vocab), "--merge-file", str(merges)]
    _show("3. Data set:")
    _run(
        folder,
        [
            *("preprocess", "--input", str(folder / "corpus.jsonl")),
            *("--output-prefix", str(folder / "corpus"), *tokenizer, "--append-eod"),
        ],
    )
    total = iterations + resumed
    shared = [
        *MODEL,
        "--lr-warmup-iters",
        str(min(WARMUP, total // 2)),
        "--data-path",
        str(folder / "corpus_text_document"),
        *tokenizer,
    ]
    shared += ["--data-cache-path", str(folder / "cache"), "--train-iters", str(total)]
    checkpoint = str(folder / "checkpoint")
    shared += ["--ckpt-format", "torch_dist", "--save-interval", str(total)]
    shared += ["--save", checkpoint, "--load", checkpoint]
    _show(f"4. Training, stopped with a checkpoint after {iterations} of {total} iterations:")
    steps = _train(folder, [*shared, "--exit-interval", str(iterations)])
    _show("5. The same command resumes from the checkpoint:")
    steps += _train(folder, shared)
    last = steps[-1].iteration if steps else 0
    if last != total:
        raise BridgeError(
            "The resumed run did not reach its last iteration.",
            evidence=f"last logged iteration: {last} of {total}",
            next=f"read {folder / 'training.log'}",
        )
    curve = folder / "loss.png"
    title = f"GPT on {selection.chosen.title}: Python's own sources"
    draw_curve(steps, iterations, title, curve)
    milliseconds = sorted(step.milliseconds for step in steps)[len(steps) // 2]
    _show(
        f"\nLoss {steps[0].loss:.2f} -> {steps[-1].loss:.2f} in {total} iterations, "
        f"{milliseconds:.0f} ms each (median)\n"
        f"Loss curve: {curve}\nCheckpoint: {checkpoint}\n"
        f"The commands, to repeat by hand: {folder / COMMANDS_FILE}"
    )


def _train(folder: Path, arguments: Sequence[str]) -> list[Step]:
    """Train; the logged steps. The whole log goes to training.log."""
    steps: list[Step] = []
    follow_step = _progress()
    with (folder / "training.log").open("a", encoding="utf-8") as log:

        def follow(line: str) -> None:
            log.write(line)
            step = parse_step(line)
            if step is not None:
                steps.append(step)
                follow_step(step)

        _run(folder, ["pretrain", "--nproc-per-node", "1", "--", *arguments], follow)
    return steps


def _progress() -> Callable[[Step], None]:
    """Shows steps: one line that moves on a terminal, every tenth as a line elsewhere."""
    terminal = sys.stdout.isatty()

    def step_line(step: Step) -> None:
        last = step.iteration == step.of
        text = f"   iteration {step.iteration}/{step.of}  loss {step.loss:.3f}"
        text += f"  {step.milliseconds:.0f} ms"
        if terminal:
            _show(f"\r{text}\033[K", end="\n" if last else "")
        elif last or step.iteration % 10 == 0:
            _show(text)

    return step_line


def _run(folder: Path, command: Sequence[str], follow: Callable[[str], None] | None = None) -> None:
    """Run one ``accel-bridge`` command; its output goes to ``follow``, or is shown.

    :raises BridgeError: it failed; with its last lines.
    """
    line = shlex.join(["accel-bridge", *command])
    with (folder / COMMANDS_FILE).open("a", encoding="utf-8") as commands:
        commands.write(line + "\n")
    _show(f"   $ {line if len(line) < 200 else line[:200] + ' ...'}")
    last: deque[str] = deque(maxlen=15)
    process = subprocess.Popen(
        [sys.executable, "-m", "accel_bridge", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for output in process.stdout:
            last.append(output.rstrip())
            if follow is None:
                _show(f"   {output}", end="")
            else:
                follow(output)
    except BaseException:
        _end(process)
        raise
    status = process.wait()
    if status != 0:
        raise BridgeError(
            f"`accel-bridge {command[0]}` failed with status {status}.",
            evidence=list(last),
            next=f"repeat it by hand: the last line of {folder / COMMANDS_FILE}",
        )


def _end(process: subprocess.Popen[str]) -> None:
    """End a command that is no longer wanted, at once if it does not by itself."""
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        assert process.stdout is not None
        process.stdout.close()
