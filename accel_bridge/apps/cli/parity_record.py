"""``accel-bridge parity record``, ``capsule`` and ``repeat``: they train. A recording holds the
numbers of every step, a capsule the operators of one module; a run that is repeated is the same
bit for bit.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from accel_bridge import recording
from accel_bridge.apps import comparison
from accel_bridge.apps.capsules import FirstBit, Place, choose, first_bit
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process import launch
from accel_bridge.process.endings import ending, held
from accel_bridge.process.extras import import_torch
from accel_bridge.process.outputs import check_output
from accel_bridge.process.parser import Parser, parted, positive
from accel_bridge.process.ranks import be_killed_with_parent
from accel_bridge.recording import (
    CAPSULE_MAGIC,
    EVERY,
    MAGIC,
    Plan,
    check_zstd,
    read,
    read_capsule,
    write,
)

# The child process of a command: it ends with the command, however that ends.

#: Seconds that a child has to end by itself after Ctrl-C.
GRACE: Final = 1.2


def run_child(command: Sequence[str]) -> int:
    """Run a command to its end, with this one's terminal; its exit status.

    After Ctrl-C or SIGTERM it is asked to end, and killed when it has not done so in
    :data:`GRACE` seconds.
    """
    with held():
        prepare = partial(be_killed_with_parent, os.getpid())
        child = subprocess.Popen(command, preexec_fn=prepare)
    # A terminal sends SIGINT to both; `kill` sends it to one.
    with ending(child, signal.SIGINT, GRACE):
        return child.wait()


def add_record(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "record",
        help="train some steps and write their numbers to a small file",
        usage="%(prog)s --out FILE [--every N] [TORCHRUN OPTIONS] -- MEGATRON ARGUMENTS",
        description="Runs `accel-bridge pretrain` with the same arguments and records loss, "
        "gradient norm, time and a fingerprint of the batch at every step, and statistics of "
        "every module, gradient and weight at some. Without --load the weights are drawn by "
        "parameter name, the same on every machine and in every layout.",
        epilog=launch.EPILOG,
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
        "--limits",
        action="store_true",
        help="run the first step twice more with every output and gradient moved by its rounding: "
        "`compare` then takes each tensor's limit from that and not from a table",
    )
    add_training_options(parser)
    parser.add_argument("argv", nargs="*", metavar="MEGATRON ARGUMENTS")


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Declare what :func:`train` hands on to ``accel-bridge pretrain``."""
    parser.add_argument(
        "--model",
        choices=("gpt", "hybrid"),
        default="gpt",
        help="the entry point of `accel-bridge pretrain` (default: %(default)s)",
    )
    launch.add_options(parser)


def run_record(arguments: argparse.Namespace) -> int:
    """Train with the recorder; the exit status."""
    check_zstd()
    out = arguments.out.absolute()
    check_output(out, option="--out", made=(MAGIC,))
    train(Plan(out=str(out), every=arguments.every), out, arguments)
    if arguments.limits:
        _measure_limits(out, arguments)
    return 0


def _measure_limits(out: Path, arguments: argparse.Namespace) -> None:
    """Train the first step with perturbed tensors, and write what it moved into the recording."""
    with TemporaryDirectory(prefix="accel-bridge-limits-") as directory:
        moved = [Path(directory) / f"{seed}.rec" for seed in (1, 2)]
        for seed, file in enumerate(moved, 1):
            train(Plan(out=str(file), last=1, perturbs=seed), file, arguments)
        found = read(out)
        write(replace(found, limits=comparison.moved_by(found, [*map(read, moved)])), out)


def train(plan: Plan, out: Path, arguments: argparse.Namespace) -> None:
    """Train by ``plan``, which writes ``out``.

    :param arguments: of :func:`add_training_options`, and Megatron's as ``argv``.
    :raises BridgeError: the run failed, or ended without the file.
    """
    runner = shlex.join(["accel_bridge.apps.record", plan.as_word()])
    command = [sys.executable, "-m", "accel_bridge", "pretrain", "--runner", runner]
    command += ["--model", arguments.model]
    command += [*launch.option_argv(arguments), "--", *arguments.argv]
    began = time.time()
    sys.stdout.flush()
    status = run_child(command)
    if status != 0:
        raise BridgeError(
            f"The training run failed with status {status}; nothing was recorded.",
            evidence="its own messages are above",
            next="fix what they say; `accel-bridge pretrain` trains without recording",
        )
    # One machine of several writes the file; the others have done their part.
    if launch.given(arguments, "--node-rank") in (None, "0") and not _is_new(out, began):
        raise BridgeError(
            "The training run ended before its last step; nothing was recorded.",
            evidence=f"no new file {out}",
            next="remove --exit-interval, --exit-duration-in-mins and --skip-train, and give "
            "--train-iters",
        )


def _is_new(path: Path, began: float) -> bool:
    # File systems may round times down to two seconds.
    return path.is_file() and path.stat().st_mtime >= began - 2


def add_capsule(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "capsule",
        help="every operator of the module at which two recordings part, in a file",
        usage="%(prog)s [A B] [--module NAME] --out FILE\n"
        "         [TORCHRUN OPTIONS] -- MEGATRON ARGUMENTS",
        description="Trains again, on this machine, to the step at which the recordings A and B "
        "part, and writes every operator of the layer at which they do so, forward and backward, "
        "with its tensors. `accel-bridge parity replay` reads the file on any machine.",
        epilog=launch.EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the capsule")
    parser.add_argument(
        "--module",
        metavar="NAME",
        help="this module instead, by its name in a recording; or step, loss, gradients or "
        "optimizer",
    )
    parser.add_argument("--step", metavar="N", type=positive, help="this step instead")
    add_training_options(parser)
    parser.add_argument("files", nargs="*", metavar="A B", type=Path, help="the recordings")


def with_argv(
    parse: Callable[[Sequence[str]], argparse.Namespace], argv: Sequence[str]
) -> argparse.Namespace:
    """What ``parse`` makes of ``argv``; argparse cannot read two lists with options between."""
    if not {"capsule", "logprobs"}.intersection(argv[:1]) or "--" not in argv:
        return parse(argv)
    own, behind = parted(argv)
    arguments = parse(own)
    arguments.argv = behind
    return arguments


def run_capsule(arguments: argparse.Namespace) -> int:
    """Train to the step; 0."""
    check_zstd()
    files: list[Path] = arguments.files
    if len(files) not in (0, 2) or not getattr(arguments, "argv", None):
        raise BridgeError(
            "A capsule is of two recordings, and of the run that made one of them.",
            evidence=f"{len(files)} recordings and "
            f"{len(getattr(arguments, 'argv', []))} words after --",
            next="accel-bridge parity capsule A.rec B.rec --out FILE -- MEGATRON ARGUMENTS",
        )
    out = arguments.out.absolute()
    check_output(out, option="--out", inputs=files, made=(CAPSULE_MAGIC,))
    place = _place(files, arguments.module, arguments.step)
    print(f"capsule of {place.module} at step {place.step}", flush=True)
    _train_to(place, out, arguments)
    print(f"next: accel-bridge parity replay {arguments.out}")
    return 0


def _train_to(place: Place, out: Path, arguments: argparse.Namespace) -> None:
    """Train to a step, and write the capsule of a module there."""
    plan = Plan(out="", capsule=place.module, capsule_step=place.step, capsule_out=str(out))
    train(plan, out, arguments)


def _place(files: list[Path], module: str | None, step: int | None) -> Place:
    if module is not None and (step is not None or not files):
        return Place(module, step or 1)
    if not files:
        raise BridgeError(
            "Nothing says which module the capsule should hold.",
            evidence="neither two recordings nor --module is given",
            next="accel-bridge parity capsule A.rec B.rec --out FILE -- MEGATRON ARGUMENTS",
        )
    a, b = files
    found = choose(
        comparison.compare(recording.read(a), recording.read(b), None, (str(a), str(b), ""))
    )
    return Place(module or found.module, step or found.step)


def add_repeat(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "repeat",
        help="the same run twice: equal bit for bit, or the first operator that is not",
        usage="%(prog)s [TORCHRUN OPTIONS] -- MEGATRON ARGUMENTS",
        description="Trains twice with the same arguments and compares loss, gradient norm, "
        "weights and gradients bit for bit. Where they differ it trains twice more to the step "
        "where they do, and names the first operator that gave other results for the same inputs. "
        "Ends with status 1 when they differ.",
        epilog=launch.EPILOG,
        allow_abbrev=False,
    )
    add_training_options(parser)
    parser.add_argument("argv", nargs="*", metavar="MEGATRON ARGUMENTS")


def run_repeat(arguments: argparse.Namespace) -> int:
    """Train twice; 0 when every bit is equal."""
    check_zstd()
    with TemporaryDirectory(prefix="accel-bridge-repeat-") as directory:
        files = [Path(directory) / name for name in ("first.rec", "second.rec")]
        for file in files:
            train(Plan(out=str(file), every=1), file, arguments)
        first, second = (recording.read(file) for file in files)
        differs = first_bit(first, second)
        if differs is None:
            print(
                f"PASS: {len(first.steps)} steps, {len(first.observations)} tensors, equal bit "
                "for bit twice"
            )
            return 0
        print(f"FAIL: step {differs.step}: {differs.what} is not the same twice")
        _name(differs, Path(directory), arguments)
    return 1


def _name(differs: FirstBit, directory: Path, arguments: argparse.Namespace) -> None:
    """Say which operator it is."""
    capsules = [directory / name for name in ("first.capsule", "second.capsule")]
    for file in capsules:
        _train_to(differs.place, file, arguments)
    import_torch()
    from accel_bridge.apps.capsules import replayed

    a, b = (read_capsule(file) for file in capsules)
    found = replayed.diverge(a, b, bitwise=True)
    if found is None:
        print(f"{differs.place.module} was equal twice this time: try again, or with --module step")
        return
    print(printable("\n".join(replayed.lines_of_two(a, b, found)[1:]), keep="\n"))
