"""``accel-bridge first-run``: what a new machine shows, in one file to send back."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from accel_bridge.apps.cli._output import add_json_flag, only_stderr, print_json
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.outputs import check_output, holds, write_output
from accel_bridge.process.parser import Parser
from accel_bridge.recording import check_zstd

_DEFAULT: Final = Path("accel-bridge-first-run.zip")


class StepsFailed(BridgeError):
    """A step of the first run found something wrong, or ended."""

    exit_code = 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge first-run",
        description="For a machine that nobody has tried yet: versions, `doctor`, a training of "
        "20 steps against a CPU's recording that is shipped, throughput, and every kernel against "
        "its reference. Takes less than ten minutes and leaves one file to send back. Ends with "
        "status 1 when a step fails; the others run all the same.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=_DEFAULT, help="the file (%(default)s)"
    )
    parser.add_argument("--backend", metavar="NAME", help="default: the one a program would get")
    add_json_flag(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Run the steps, write the file, say what was found."""
    arguments = _parser().parse_args(words)
    check_zstd()
    from accel_bridge.apps import first_run
    from accel_bridge.apps.first_run._report import MARK

    check_output(arguments.out, option="--out", made=holds(MARK.encode()))
    with only_stderr():
        machine = first_run.look(arguments.backend)
        print(f"first run on {machine.title}: up to ten minutes", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="accel-bridge-first-run-") as folder:
            results = first_run.Steps(machine, Path(folder)).run(_tell)
            write_output(
                arguments.out, first_run.pack(machine, results, Path(folder)), option="--out"
            )
    if arguments.json:
        print_json(lambda: first_run.as_json(machine, results))
    else:
        print(printable(first_run.as_text(machine, results), keep="\n"))
        print(f"please send this file back: {arguments.out}")
    failed = [one for one in results if not one.passed]
    if failed:
        names = ", ".join(one.name for one in failed)
        raise StepsFailed(
            f"{len(failed)} of {len(results)} steps of the first run failed: {names}",
            evidence=[f"{one.name}: {(one.evidence or [one.summary])[-1]}" for one in failed],
            next=f"send {arguments.out} back all the same; it holds each step's log",
        )
    return 0


def _tell(result: object) -> None:
    from accel_bridge.apps.first_run import Result

    assert isinstance(result, Result)
    line = f"{result.name}: {result.verdict} ({result.seconds:.0f} s) {result.summary}"
    print(printable(line), file=sys.stderr, flush=True)
