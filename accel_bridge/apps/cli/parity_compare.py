"""``accel-bridge parity compare``: two recordings side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from accel_bridge import recording
from accel_bridge._errors import BridgeError
from accel_bridge.apps import comparison
from accel_bridge.apps.cli._output import add_json_flag, print_heading, print_json, print_table


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="two recordings side by side, with a verdict",
        description="Compares two files of `accel-bridge parity record`. Needs neither torch nor "
        "Megatron. Ends with status 1 when the runs disagree, 2 when they cannot be compared.",
    )
    parser.add_argument("a", metavar="A", type=Path, help="the recording to trust")
    parser.add_argument("b", metavar="B", type=Path, help="the recording to judge")
    parser.add_argument(
        "--third",
        metavar="FILE",
        type=Path,
        help="the same run in float32: tells rounding from defects, and which run is off",
    )
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw both curves")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with everything")
    add_json_flag(parser)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; 0 when the runs agree."""
    third = None if arguments.third is None else recording.read(arguments.third)
    found = comparison.compare(
        recording.read(arguments.a),
        recording.read(arguments.b),
        third,
        (str(arguments.a), str(arguments.b), str(arguments.third)),
    )
    picture = comparison.draw(found) if arguments.png or arguments.html else None
    if arguments.png is not None:
        assert picture is not None
        _write(arguments.png, picture)
    if arguments.html is not None:
        _write(arguments.html, comparison.as_html(found, picture).encode())
    if arguments.json:
        print_json(lambda: comparison.as_json(found))
    else:
        _print(found)
    return 0 if found.passed else 1


def _print(found: comparison.Comparison) -> None:
    print_table(("", ""), [list(line) for line in comparison.facts(found)])
    print_heading("Steps")
    print_table(comparison.STEP_COLUMNS, comparison.step_cells(found))
    if found.departures:
        print_heading("First tensors beyond the rule")
        print_table(comparison.DEPARTURE_COLUMNS, comparison.departure_cells(found))
    print()
    for line in comparison.verdict(found):
        print(line)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise BridgeError(
            f"{path} cannot be written.",
            evidence=str(error),
            next="give a file in a folder that exists and can be written",
        ) from error
