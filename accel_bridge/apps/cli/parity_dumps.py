"""``accel-bridge parity dumps``: msprobe's dumps of two runs, or of a recording's run."""

from __future__ import annotations

import argparse
from pathlib import Path

from accel_bridge import recording
from accel_bridge.apps import dumps
from accel_bridge.apps.cli._output import add_json_flag, print_json
from accel_bridge.errors import printable
from accel_bridge.process.parser import Parser, positive


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "dumps",
        help="dumps of msprobe (mindstudio-probe): the first operator that departs",
        description="Compares two dumps of msprobe's PrecisionDebugger (task statistics) call by "
        "call and names the first operator that departs; or a recording and a dump of the same "
        "step, module by module. Needs neither torch nor msprobe. Ends with status 1 when they "
        "disagree, 2 when they cannot be compared.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="stepN/rankM to trust, or a recording")
    parser.add_argument("b", metavar="B", type=Path, help="stepN/rankM to judge")
    parser.add_argument(
        "--step",
        metavar="N",
        type=positive,
        help="of the recording, from 1; default: that of B's directory",
    )
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; 0 when they agree."""
    if not dumps.is_dump(arguments.b):
        raise dumps.DumpError(
            f"{arguments.b} is not a dump of msprobe",
            evidence="B must be a folder or its dump.json; only A may be a recording",
            next="accel-bridge parity compare A B compares two recordings",
        )
    judged = dumps.read(arguments.b)
    if dumps.is_dump(arguments.a):
        found = dumps.compare(dumps.read(arguments.a), judged)
    else:
        trusted = recording.read(arguments.a)
        found = dumps.compare_recording(trusted, str(arguments.a), judged, arguments.step)
    if arguments.json:
        print_json(lambda: dumps.as_json(found))
    else:
        print(printable(dumps.as_text(found), keep="\n"))
    return 0 if found.passed else 1
