"""``accel-bridge demo``: the whole way on this machine, offline.

Text, tokenizer, data set, training, checkpoint, resume and loss curve: each step is a command that
the user can repeat by hand.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from accel_bridge.apps import plot
from accel_bridge.bridge.selection import select_here
from accel_bridge.errors import BridgeError
from accel_bridge.process import endings
from accel_bridge.process.extras import require
from accel_bridge.process.log import tell
from accel_bridge.process.outputs import OutputLock, mapped, write_output
from accel_bridge.process.parser import Parser, positive
from accel_bridge.process.progress import is_wanted
from accel_bridge.process.progress.lines import FACTS, Iteration, LogReader
from accel_bridge.process.progress.screen import Screen
from accel_bridge.process.ranks import be_killed_with_parent

#: Enough text for a minute of training (bytes).
WANTED = 6_000_000

#: Less text than this trains nothing worth a curve (bytes).
NEEDED = 500_000


def sources(root: Path) -> Iterator[str]:
    """Text of the standard library's modules and packages, in the order of their paths."""
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).parts
        # Installed packages are not part of Python; its test data holds deliberate nonsense.
        if not {"site-packages", "dist-packages", "test", "tests", "idlelib"} & set(inside):
            try:
                yield path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a few sources declare another encoding


def write_corpus(path: Path) -> tuple[int, int]:
    """Write JSON lines with one source file a document; (documents, bytes of text).

    :raises BridgeError: this Python comes without its sources.
    """
    documents = size = 0
    directory = Path(sysconfig.get_path("stdlib"))
    with path.open("w", encoding="utf-8") as file:
        for text in sources(directory):
            file.write(json.dumps({"text": text}) + "\n")
            documents += 1
            size += len(text.encode())
            if size >= WANTED:
                break
    if size < NEEDED:
        raise BridgeError(
            "This Python has no sources of its standard library to train on.",
            evidence=f"{size} bytes of text in {directory}",
            next="use a Python with its .py files, or your own text with accel-bridge preprocess",
        )
    return documents, size


#: The commands, to repeat by hand. Its second line says that the demo made it.
COMMANDS_FILE: Final = "commands.sh"
_HEADER: Final = "#!/bin/sh -e\n# Made by accel-bridge demo"
#: What training says.
LOG: Final = "training.log"


def prepare(directory: Path) -> None:
    """Move what an earlier demo left to a directory beside, and begin :data:`COMMANDS_FILE`.

    :param directory: is there; the caller holds its lock.
    :raises BridgeError: it is not a demo's; nothing has been moved.
    """
    commands = directory / COMMANDS_FILE
    # The commands go last: what is cut short can be taken up again.
    left = sorted(directory.iterdir(), key=lambda path: path.name == COMMANDS_FILE)
    if left:
        if not (commands.is_file() and commands.read_bytes().startswith(_HEADER.encode())):
            raise BridgeError(
                f"{directory} holds files that no demo made.",
                evidence=[f"{path}" for path in left[:5]],
                next="accel-bridge demo --out ANOTHER_DIRECTORY",
            )
        whole = directory.resolve()
        places = (whole.with_name(f"{whole.name}.{number}") for number in itertools.count(1))
        aside = next(place for place in places if not os.path.lexists(place))
        aside.mkdir()
        for path in left:
            path.rename(aside / path.name)
        tell(f"note: what was in {directory} is in {aside} now")
    commands.write_text(f'{_HEADER}\ncd "$(dirname "$0")"\n', encoding="utf-8")


def note(directory: Path, line: str) -> None:
    """Add a line to :data:`COMMANDS_FILE`."""
    with (directory / COMMANDS_FILE).open("a", encoding="utf-8") as commands:
        commands.write(f"{line}\n")


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

#: Models of 1 to 2 million parameters; Megatron's own defaults for everything that is not here.
MODELS: Final = {
    "gpt": "--num-layers 4 --position-embedding-type rope",
    "hybrid": "--hybrid-layer-pattern M-M-*- --position-embedding-type none --mamba-head-dim 32 "
    "--mamba-state-dim 16 --spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec",
}
TRAINING: Final = """
--hidden-size 128 --num-attention-heads 4 --seq-length 128
--max-position-embeddings 128 --swiglu --normalization RMSNorm
--disable-bias-linear --attention-dropout 0 --hidden-dropout 0
--micro-batch-size 8 --global-batch-size 16 --lr 3e-3 --min-lr 3e-4 --lr-decay-style cosine
--clip-grad 1.0 --seed 1234 --log-interval 1 --eval-interval 1000
--eval-iters 1 --split 98,1,1 --distributed-backend nccl
""".split()


def run_demo(directory: Path, iterations: int, resumed: int, model: str = "gpt") -> None:
    """Run every step in ``directory``; an earlier demo there is moved aside.

    :param model: one of :data:`MODELS`.
    :param iterations: of the first training run.
    :param resumed: iterations after the resume.
    :raises BridgeError: something is missing, the directory is not the demo's, or a step failed.
    """
    require(*MODULES, extras=EXTRAS)
    with mapped(directory, "--out"):
        directory.mkdir(parents=True, exist_ok=True)
        with OutputLock(directory, "--out"):
            prepare(directory)
            _run_steps(directory, iterations, resumed, model)


def _run_steps(directory: Path, iterations: int, resumed: int, model: str) -> None:
    selection = select_here()
    _show(f"Backend: {selection.why}\nEverything is written to {directory}{os.sep}\n")
    total = iterations + resumed
    # Commands run in the directory, so that commands.sh can be moved with it.
    shared = [
        *MODELS[model].split(),
        *TRAINING,
        *("--lr-warmup-iters", str(min(WARMUP, total // 2))),
        *("--data-path", "corpus_text_document", *TOKENIZER),
        *("--data-cache-path", "cache", "--train-iters", str(total)),
        *("--ckpt-format", "torch_dist", "--save-interval", str(total)),
        *("--save", "checkpoint", "--load", "checkpoint"),
    ]
    documents, size = write_corpus(directory / "corpus.jsonl")
    _show(f"1. Text: {documents} sources of Python's standard library, {size / 1e6:.1f} MB")
    _show("2. Tokenizer, a byte-level BPE:")
    note(directory, "rm -rf tokenizer  # so that it is learned again: none is written over")
    argv = ["tokenizer", "train", "--input", "corpus.jsonl", "--output", "tokenizer"]
    _run(directory, [*argv, "--vocab-size", str(VOCABULARY_SIZE)])
    _show("3. Data set:")
    argv = ["preprocess", "--input", "corpus.jsonl", "--output-prefix", "corpus"]
    _run(directory, [*argv, *TOKENIZER, "--append-eod"])
    _show(f"4. Training, stopped with a checkpoint after {iterations} of {total} iterations:")
    note(directory, "rm -rf checkpoint  # so that it trains again, from the beginning")
    trainer = ["pretrain", "--model", model, "--nproc-per-node", "1", "--", *shared]
    points = _train(directory, [*trainer, "--exit-interval", str(iterations)])
    _show("5. The same command resumes from the checkpoint:")
    points += _train(directory, trainer)
    last = points[-1].number if points else 0
    if last != total:
        raise BridgeError(
            "The resumed run did not reach its last iteration.",
            evidence=f"last logged iteration: {last} of {total}",
            next=f"read {directory / LOG}",
        )
    run = plot.read_run(directory / LOG, "loss")
    over = plot.window([run])
    title = f"{model} on {selection.chosen.title}: Python's own sources"
    picture = plot.draw([run], over, title=title, marks=[(iterations, "checkpoint, resumed")])
    write_output(directory / "loss.png", picture)
    mean = f" (mean of the last {plot.tail(over)})" if over > 1 else ""
    milliseconds = 1000 * (run.seconds or 0)
    _show(
        f"\nLoss {run.points[0].loss:.2f} -> {run.loss(over):.2f}{mean} in {total} iterations, "
        f"{milliseconds:.0f} ms each (median)\n"
        f"Loss curve: {directory / 'loss.png'}\nCheckpoint: {directory / 'checkpoint'}\n"
        f"The commands, to repeat by hand: {directory / COMMANDS_FILE}"
    )


def _train(directory: Path, argv: Sequence[str]) -> list[Iteration]:
    """Train; the logged iterations. The whole log goes to training.log."""
    points: list[Iteration] = []
    reader = LogReader()
    screen = Screen(only_line=True) if is_wanted(default=True) else None
    with (directory / LOG).open("a", encoding="utf-8") as log:

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
            _run(directory, argv, follow)
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


def _run(directory: Path, argv: Sequence[str], follow: Callable[[str], None] | None = None) -> None:
    """Run one command of ``accel-bridge`` to its end; its output goes to ``follow``, or is shown.

    :raises BridgeError: it failed; with its last lines.
    """
    line = shlex.join(["accel-bridge", *argv])
    note(directory, line)
    _show(f"   $ {line if len(line) < 200 else line[:200] + ' ...'}")
    last: deque[str] = deque(maxlen=15)
    with (
        subprocess.Popen(
            [sys.executable, "-m", "accel_bridge", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=directory,
            env={**os.environ, FACTS: "1"},
            preexec_fn=functools.partial(be_killed_with_parent, os.getpid()),
        ) as process,
        endings.ending(process, signal.SIGTERM, GRACE),
    ):
        assert process.stdout is not None
        for output in process.stdout:
            last.append(output.rstrip())
            if follow is None:
                _show(f"   {output}", end="")
            else:
                follow(output)
        status = process.wait()
    if status != 0:
        raise BridgeError(
            f"`accel-bridge {argv[0]}` failed with status {status}.",
            evidence=list(last),
            next=f"repeat it by hand: the last line of {directory / COMMANDS_FILE}",
        )


def _parser() -> argparse.ArgumentParser:
    # More iterations of so small a model are a slip of the finger.
    count = functools.partial(positive, most=1_000_000)
    parser = Parser(
        prog="accel-bridge demo",
        description="Offline, in about two minutes: takes the sources of Python's standard "
        "library as text, trains a tokenizer, makes a data set, trains a small model on the "
        "hardware that was found, saves a checkpoint, resumes from it, and draws the loss curve. "
        "Every command is written to commands.sh.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("accel-bridge-demo"),
        help="directory for everything it writes (default: %(default)s)",
    )
    parser.add_argument(
        "--model", choices=tuple(MODELS), default="gpt", help="gpt, or hybrid (Mamba and attention)"
    )
    parser.add_argument(
        "--iterations", type=count, default=150, help="before the resume (default: 150)"
    )
    parser.add_argument("--resumed", type=count, default=50, help="after the resume (default: 50)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the demo.

    :raises BridgeError: it cannot be finished, or was interrupted.
    """
    arguments = _parser().parse_args(argv)
    try:
        run_demo(arguments.out, arguments.iterations, arguments.resumed, arguments.model)
    except KeyboardInterrupt as interrupt:
        raise BridgeError(
            "The demo was interrupted.",
            evidence=f"what it had made is in {arguments.out}",
            next="run the same command again: it begins anew",
            exit_code=128 + endings.number_of(interrupt),
        ) from None
    return 0
