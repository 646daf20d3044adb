"""``accel-bridge parity compare``: two recordings side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from accel_bridge import recording
from accel_bridge.apps import comparison
from accel_bridge.apps.cli._output import add_json_flag, print_heading, print_json, print_table
from accel_bridge.errors import printable
from accel_bridge.process.outputs import check_output, holds, write_output
from accel_bridge.process.parser import Parser

#: Stands in the head of every picture and page.
_MARK: Final = comparison.MADE_BY.encode()


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
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
    inputs = [one for one in (arguments.a, arguments.b, arguments.third) if one is not None]
    outputs = {"--png": arguments.png, "--html": arguments.html}
    _check_outputs(outputs, inputs)
    third = None if arguments.third is None else recording.read(arguments.third)
    found = comparison.compare(
        recording.read(arguments.a),
        recording.read(arguments.b),
        third,
        (str(arguments.a), str(arguments.b), str(arguments.third)),
    )
    picture = comparison.draw(found) if any(outputs.values()) else None
    if arguments.png is not None:
        assert picture is not None
        write_output(arguments.png, picture, option="--png")
    if arguments.html is not None:
        page = comparison.as_html(found, picture).encode(errors="backslashreplace")
        write_output(arguments.html, page, option="--html")
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
        print(printable(line))


def _check_outputs(outputs: dict[str, Path | None], inputs: list[Path]) -> None:
    taken = list(inputs)
    for option, path in outputs.items():
        if path is not None:
            check_output(path, option=option, inputs=taken, made=holds(_MARK))
            taken.append(path)
