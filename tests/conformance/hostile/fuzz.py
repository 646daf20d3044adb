"""Thousands of changed recordings, indices and command lines, in this one process.

    python tests/conformance/hostile/fuzz.py [--count 10000] [--seed 1]

Each must give an answer or an error in three parts. Prints every other exception with the seed of
its input, then counts, time and peak memory; exits 1 where there was one, or memory beyond 1 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_bridge.apps.cli.main import main as command
from accel_bridge.errors import BridgeError
from accel_bridge.pretrain.indexed_data import check_indexed_datasets
from conformance.hostile.case import MOST_BYTES
from conformance.hostile.files import COMMAND_WORDS, damaged, document_changed
from conformance.hostile.fixtures import furnish, prepare_templates, remove_templates

#: What starts processes or trains: only its command line is looked at.
_STARTS = (
    "accel_bridge.apps.cli.parity_record.run_child",
    "accel_bridge.apps.cli.demo.run_demo",
    "os.execv",
    "os.execve",
)


def recording(source: random.Random) -> None:
    """Compare with a recording that is damaged, or has another value."""
    path = Path("b.rec")
    path.write_bytes(
        document_changed(source) if source.random() < 0.7 else _damaged("a.rec", source)
    )
    _command(["parity", "compare", "a.rec", "b.rec", *source.choice(([], ["--json"]))])


def pair(source: random.Random) -> None:
    """Inspect a pair that is damaged, and check it as a training does."""
    for suffix in source.choice(((".idx",), (".bin",), (".idx", ".bin"))):
        Path(f"bad{suffix}").write_bytes(_damaged(f"data_text_document{suffix}", source))
    _command(["inspect", "bad", "--vocab-size", "255", *source.choice(([], ["--json"]))])
    with contextlib.suppress(BridgeError):
        check_indexed_datasets(["bad"])


def command_line(source: random.Random) -> None:
    """Words of the commands in any order, among words that are none."""
    words = [source.choice(COMMAND_WORDS) for _ in range(source.randint(1, 8))]
    # It runs every kernel, imports torch, and reads what stands on standard input.
    words = [word for word in words if word not in ("kernels", "--kernels")]
    if words and words[0] == "env":
        words.append("--no-imports")
    _command(words)


def _damaged(name: str, source: random.Random) -> bytes:
    return damaged(_SOUND.setdefault(name, Path(name).read_bytes()), source)


_SOUND: dict[str, bytes] = {}


def _command(words: list[str]) -> None:
    """Run the command.

    :raises AssertionError: it fails without three parts, or prints what acts on a terminal.
    """
    with (
        contextlib.redirect_stdout(io.StringIO()) as shown,
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        try:
            status = command(words)
        except SystemExit as end:
            status = int(end.code or 0)
    text = said.getvalue()
    assert "\x1b" not in text + shown.getvalue(), f"{words}: escapes"
    assert "Traceback" not in text, f"{words}: {text[-2000:]}"
    parts = all(part in text for part in ("accel-bridge: error: ", "  evidence: ", "  next: "))
    assert status in (0, 1) or parts, f"{words}: status {status}: {text[-500:]}"


KINDS: dict[str, tuple[int, Callable[[random.Random], None]]] = {
    "recordings": (4, recording),
    "indices": (4, pair),
    "command lines": (2, command_line),
}


def main() -> int:
    """Read the command line and try; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=KINDS)
    options = parser.parse_args()
    kinds = options.kind or list(KINDS)
    total = sum(KINDS[kind][0] for kind in kinds)
    tried: Counter[str] = Counter()
    unexplained = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        prepare_templates(checkpoint=False)
        stack.callback(remove_templates)
        furnish(Path(name, "work"))
        stack.callback(os.chdir, os.getcwd())
        os.chdir(Path(name, "work"))
        for start in _STARTS:
            stack.enter_context(mock.patch(start, side_effect=SystemExit(0), create=True))
        for kind in kinds:
            share, attempt = KINDS[kind]
            for number in range(options.count * share // total):
                seed = f"{options.seed} {kind} {number}"
                tried[kind] += 1
                try:
                    attempt(random.Random(seed))
                except Exception as error:
                    unexplained += 1
                    print(f"{seed!r}: {type(error).__name__}: {error!s:.2000}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    counts = ", ".join(f"{count} {kind}" for kind, count in tried.items())
    print(f"{counts}: {unexplained} unexplained; peak {peak / 1e6:.0f} MB; "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return 0 if unexplained == 0 and peak < MOST_BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
