"""``accel-bridge parity capsule``: the operators of one module at the step where two runs part."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from accel_bridge import recording
from accel_bridge.apps import comparison
from accel_bridge.apps.capsules import Place, choose
from accel_bridge.apps.cli import parity_record
from accel_bridge.errors import BridgeError
from accel_bridge.process import torchrun
from accel_bridge.process.outputs import check_output
from accel_bridge.process.parser import Parser, positive
from accel_bridge.recording import CAPSULE_MAGIC, Plan, check_zstd


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "capsule",
        help="every operator of the module at which two recordings part, in a file",
        usage="%(prog)s [A B] [--module NAME] --out FILE\n"
        "         [TORCHRUN OPTIONS] -- MEGATRON ARGUMENTS",
        description="Trains again, on this machine, to the step at which the recordings A and B "
        "part, and writes every operator of the layer at which they do so, forward and backward, "
        "with its tensors. `accel-bridge parity replay` reads the file on any machine.",
        epilog=torchrun.EPILOG,
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
    parity_record.add_training_options(parser)
    parser.add_argument("files", nargs="*", metavar="A B", type=Path, help="the recordings")


def with_words(
    parse: Callable[[Sequence[str]], argparse.Namespace], words: Sequence[str]
) -> argparse.Namespace:
    """What ``parse`` makes of ``words``; argparse cannot read two lists with options between."""
    if not {"capsule", "logprobs"}.intersection(words[:1]) or "--" not in words:
        return parse(words)
    place = list(words).index("--")
    arguments = parse(words[:place])
    arguments.words = list(words[place + 1 :])
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Train to the step; 0."""
    check_zstd()
    files: list[Path] = arguments.files
    if len(files) not in (0, 2) or not getattr(arguments, "words", None):
        raise BridgeError(
            "A capsule is of two recordings, and of the run that made one of them.",
            evidence=f"{len(files)} recordings and "
            f"{len(getattr(arguments, 'words', []))} words after --",
            next="accel-bridge parity capsule A.rec B.rec --out FILE -- MEGATRON ARGUMENTS",
        )
    out = arguments.out.absolute()
    check_output(out, option="--out", inputs=files, made=(CAPSULE_MAGIC,))
    place = _place(files, arguments.module, arguments.step)
    print(f"capsule of {place.module} at step {place.step}", flush=True)
    plan = Plan(out="", capsule=place.module, capsule_step=place.step, capsule_out=str(out))
    parity_record.train(plan, out, arguments)
    print(f"next: accel-bridge parity replay {arguments.out}")
    return 0


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
