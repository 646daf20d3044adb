"""``accel-bridge parity record``: train, and write the numbers of every step to a small file."""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from accel_bridge.apps import comparison
from accel_bridge.errors import BridgeError
from accel_bridge.process import torchrun
from accel_bridge.process.interrupts import held
from accel_bridge.process.outputs import check_output
from accel_bridge.process.parser import Parser, positive
from accel_bridge.process.ranks import be_killed_with_parent
from accel_bridge.recording import CAPSULE_MAGIC, EVERY, MAGIC, Plan, check_zstd, read, write

# The child process of a command: it ends with the command, however that ends.

#: Seconds that a child has to end by itself after Ctrl-C.
GRACE: Final = 1.2


def run_child(command: Sequence[str]) -> int:
    """Run a command to its end, with this one's terminal; its exit status.

    After Ctrl-C or SIGTERM it is asked to end, and killed when it has not done so in
    :data:`GRACE` seconds.
    """
    with held():
        child = subprocess.Popen(command, preexec_fn=be_killed_with_parent)
    try:
        return child.wait()
    except BaseException:
        # A terminal sends SIGINT to both; `kill` sends it to one.
        child.send_signal(signal.SIGINT)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "record",
        help="train some steps and write their numbers to a small file",
        usage="%(prog)s --out FILE [--every N] [TORCHRUN OPTIONS] -- MEGATRON ARGUMENTS",
        description="Runs `accel-bridge pretrain` with the same arguments and records loss, "
        "gradient norm, time and a fingerprint of the batch at every step, and statistics of "
        "every module, gradient and weight at some. Without --load the weights are drawn by "
        "parameter name, the same on every machine and in every layout.",
        epilog=torchrun.EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the recording")
    parser.add_argument(
        "--every",
        metavar="N",
        type=positive,
        default=EVERY,
        help="measure modules at steps 1 and 2 and at every multiple of N (default: %(default)s)",
    )
    parser.add_argument(
        "--capsule",
        metavar="NAME",
        default="",
        help="also keep every operator of the module NAME, in FILE with the suffix .capsule",
    )
    parser.add_argument(
        "--step", metavar="N", type=positive, default=1, help="of the capsule (default: 1)"
    )
    parser.add_argument(
        "--limits",
        action="store_true",
        help="run the first step twice more with every output and gradient moved by its rounding: "
        "`compare` then takes each tensor's limit from that and not from a table",
    )
    add_training_options(parser)
    parser.add_argument("words", nargs="*", metavar="MEGATRON ARGUMENTS")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`train` hands on to ``accel-bridge pretrain``."""
    parser.add_argument(
        "--model",
        choices=("gpt", "hybrid"),
        default="gpt",
        help="the entry point of `accel-bridge pretrain` (default: %(default)s)",
    )
    torchrun.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train with the recorder; the exit status."""
    check_zstd()
    out = arguments.out.absolute()
    check_output(out, option="--out", made=(MAGIC,))
    capsule = out.with_suffix(".capsule")
    if arguments.capsule:
        check_output(capsule, option="--capsule", made=(CAPSULE_MAGIC,), inputs=[out])
    plan = Plan(
        out=str(out),
        every=arguments.every,
        capsule=arguments.capsule,
        capsule_step=arguments.step,
        capsule_out=str(capsule),
    )
    train(plan, out, arguments)
    if arguments.limits:
        _measure_limits(out, arguments)
    return 0


def _measure_limits(out: Path, arguments: argparse.Namespace) -> None:
    """Train the first step with perturbed tensors, and write what it moved into the recording."""
    with TemporaryDirectory(prefix="accel-bridge-limits-") as folder:
        moved = [Path(folder) / f"{seed}.rec" for seed in (1, 2)]
        for seed, file in enumerate(moved, 1):
            train(Plan(out=str(file), last=1, perturbs=seed), file, arguments)
        found = read(out)
        write(replace(found, limits=comparison.moved_by(found, [*map(read, moved)])), out)


def train(plan: Plan, out: Path, arguments: argparse.Namespace) -> None:
    """Train by ``plan``, which writes ``out``.

    :param arguments: of :func:`add_training_options`, and Megatron's as ``words``.
    :raises BridgeError: the run failed, or ended without the file.
    """
    runner = shlex.join(["accel_bridge.apps.record", plan.as_word()])
    command = [sys.executable, "-m", "accel_bridge", "pretrain", "--runner", runner]
    command += ["--model", arguments.model]
    command += [*torchrun.option_words(arguments), "--", *arguments.words]
    began = time.time()
    sys.stdout.flush()
    status = run_child(command)
    if status != 0:
        raise BridgeError(
            f"The training run failed with status {status}; nothing was recorded.",
            evidence="its own messages are above",
            next="fix what they say; `accel-bridge pretrain` with the same arguments runs alike",
        )
    # One machine of several writes the file; the others have done their part.
    if torchrun.given(arguments, "--node-rank") in (None, "0") and not _is_new(out, began):
        raise BridgeError(
            "The training run ended before its last step; nothing was recorded.",
            evidence=f"no new file {out}",
            next="remove --exit-interval, --exit-duration-in-mins and --skip-train, and give "
            "--train-iters",
        )


def _is_new(path: Path, began: float) -> bool:
    # File systems may round times down to two seconds.
    return path.is_file() and path.stat().st_mtime >= began - 2
