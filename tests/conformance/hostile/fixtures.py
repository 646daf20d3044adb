"""What the directory of a case holds before anything bad comes into it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import warm_python
from parity import made
from tokenizers.pre_tokenizers import ByteLevel

from accel_bridge import recording
from accel_bridge.apps.testing import MODEL
from conformance.hostile.judge import PRECIOUS

TOKENIZER: Final = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "255")
#: How the model of the checkpoint is trained, and everything that loads it.
TRAINED: Final = (*MODEL, *"--lr-decay-iters 10 --ckpt-format torch_dist".split())
#: A script that ends well, and says which arguments it was given.
SCRIPT: Final = "import sys\nprint('script', sys.argv[1:])\n"


def furnish(directory: Path, *, checkpoint: bool = False) -> None:
    """Texts, a data set, recordings, scripts, and files that belong to somebody."""
    shutil.copytree(_template(), directory, symlinks=True)
    (directory.parent / PRECIOUS).write_text("somebody's file beside the directory\n")
    if checkpoint:
        shutil.copytree(_checkpoint(), directory / "checkpoint")


@functools.cache
def _template() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="hostile-"))
    lines = [{"text": " ".join(map(str, range(n, n + 20))), "id": n} for n in range(40)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "text.jsonl").write_text(text)
    (directory / "table.csv").write_text("text,id\n1 2 3,7\n4 5,8\n6,7,8,9\n")
    # A byte-level vocabulary of single characters and one merge.
    words = [*sorted(ByteLevel.alphabet()), "12", "<|endoftext|>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\n1 2\n")
    (directory / "script.py").write_text(SCRIPT)
    (directory / "run.log").write_text("".join(map(_logged, range(1, 31))))
    (directory / "train.sh").write_text("echo begun; exec python script.py $@\n")
    (directory / "notes.txt").write_text("somebody's notes\n")
    (directory / "photos").mkdir()
    (directory / "photos" / "one.png").write_bytes(b"\x89PNG somebody's picture")
    for name in ("a.rec", "b.rec"):
        recording.write(made.recording(), directory / name)
    words = ["preprocess", "--input", "text.jsonl", "--output-prefix", "data", *TOKENIZER]
    subprocess.run(
        [sys.executable, "-m", "accel_bridge", *words],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    return directory


def _logged(number: int) -> str:
    """A line of Megatron's log."""
    return (
        f" [2026-11-22 10:00:{number:02d}] iteration {number:8}/      30 | consumed samples: "
        f"{number * 8:12} | elapsed time per iteration (ms): 100.0 | learning rate: 1.0E-04 | "
        f"global batch size:     8 | lm loss: {9 - number / 10:.6E} | loss scale: 1.0 | "
        "grad norm: 1.000 | number of skipped iterations:   0 |\n"
    )


@functools.cache
def _checkpoint() -> Path:
    """One of two iterations, saved by a real run."""
    directory = _template().parent / f"{_template().name}-checkpoint"
    words = ["accel_bridge", "pretrain", "--", *TRAINED, "--train-iters", "2"]
    done = subprocess.run(
        [warm_python.interpreter(), "-m", *words, "--save", str(directory), "--save-interval", "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


@functools.cache
def can_mount() -> bool:
    """Whether a process may have file systems of its own: it takes root."""
    tried = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    with contextlib.suppress(OSError):
        return subprocess.run(tried, capture_output=True).returncode == 0
    return False


def prepare_templates(checkpoint: bool) -> None:
    """Make what :func:`furnish` copies, before threads ask for it."""
    _template()
    if checkpoint:
        _checkpoint()


def remove_templates() -> None:
    """Take the templates away again."""
    for made_by in (_template, _checkpoint):
        if made_by.cache_info().currsize:
            shutil.rmtree(made_by())
            made_by.cache_clear()
