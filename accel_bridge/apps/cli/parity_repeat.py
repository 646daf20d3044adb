"""``accel-bridge parity repeat``: the same run twice, bit for bit."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from accel_bridge import recording
from accel_bridge.apps.capsules import FirstBit, first_bit
from accel_bridge.apps.cli import parity_record
from accel_bridge.errors import printable
from accel_bridge.process import torchrun
from accel_bridge.process.parser import Parser
from accel_bridge.process.torch_import import import_torch
from accel_bridge.recording import Plan, check_zstd, read_capsule


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "repeat",
        help="the same run twice: equal bit for bit, or the first operator that is not",
        usage="%(prog)s [TORCHRUN OPTIONS] -- MEGATRON ARGUMENTS",
        description="Trains twice with the same arguments and compares loss, gradient norm, "
        "weights and gradients bit for bit. Where they differ it trains twice more to the step "
        "where they do, and names the first operator that gave other results for the same inputs. "
        "Ends with status 1 when they differ.",
        epilog=torchrun.EPILOG,
        allow_abbrev=False,
    )
    parity_record.add_training_options(parser)
    parser.add_argument("words", nargs="*", metavar="MEGATRON ARGUMENTS")


def run(arguments: argparse.Namespace) -> int:
    """Train twice; 0 when every bit is equal."""
    check_zstd()
    with TemporaryDirectory(prefix="accel-bridge-repeat-") as folder:
        files = [Path(folder) / name for name in ("first.rec", "second.rec")]
        for file in files:
            parity_record.train(Plan(out=str(file), every=1), file, arguments)
        first, second = (recording.read(file) for file in files)
        differs = first_bit(first, second)
        if differs is None:
            print(
                f"PASS: {len(first.steps)} steps, {len(first.observations)} tensors, equal bit "
                "for bit twice"
            )
            return 0
        print(f"FAIL: step {differs.step}: {differs.what} is not the same twice")
        _name(differs, Path(folder), arguments)
    return 1


def _name(differs: FirstBit, folder: Path, arguments: argparse.Namespace) -> None:
    """Say which operator it is."""
    capsules = [folder / name for name in ("first.capsule", "second.capsule")]
    for file in capsules:
        plan = Plan(
            out="",
            capsule=differs.place.module,
            capsule_step=differs.place.step,
            capsule_out=str(file),
        )
        parity_record.train(plan, file, arguments)
    import_torch()
    from accel_bridge.apps.capsules import replayed

    a, b = (read_capsule(file) for file in capsules)
    found = replayed.diverge(a, b, bitwise=True)
    if found is None:
        print(f"{differs.place.module} was equal twice this time: try again, or with --module step")
        return
    print(printable("\n".join(replayed.lines_of_two(a, b, found)[1:]), keep="\n"))
