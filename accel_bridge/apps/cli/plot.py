"""``accel-bridge plot``: loss and throughput of runs, as a table, a picture and a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from accel_bridge.apps import plot
from accel_bridge.apps.cli._output import add_json_flag, print_json, print_table
from accel_bridge.errors import BridgeError, printable
from accel_bridge.process.outputs import check_output, holds, write_output
from accel_bridge.process.parser import Parser, positive

#: Stands in the head of every picture and page.
_MARK: Final = plot.MADE_BY.encode()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge plot",
        description="Loss and throughput of training runs: a table here, "
        "a picture with --png, a page with --html. Reads logs of Megatron, MindSpeed and ms-swift, "
        "recordings of `accel-bridge parity record`, and TensorBoard's directories. The logs of a "
        "directory are one run. Needs neither torch nor Megatron.",
    )
    parser.add_argument(
        "runs", metavar="LOG", nargs="+", type=Path, help="a log, file or directory"
    )
    parser.add_argument("--png", metavar="FILE", type=Path, help="draw all runs in one picture")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write a page with picture and table, in one file"
    )
    parser.add_argument(
        "--names", metavar="NAME,...", help="what to call the runs, in their order (default: paths)"
    )
    parser.add_argument(
        "--smooth",
        metavar="N",
        type=positive,
        help="average over N logged iterations (default: a fortieth of the longest run; 1: not)",
    )
    parser.add_argument(
        "--pairs",
        metavar="LEFT,RIGHT",
        help="the runs are two by two the same training on two machines: a row for each pair, "
        "such as --pairs GPU,NPU; --names names the pairs",
    )
    parser.add_argument("--title", default="", help="above the picture")
    add_json_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    paths: list[Path] = arguments.runs
    taken = [path for path in paths if path.is_file()]
    for option, path in (("--png", arguments.png), ("--html", arguments.html)):
        if path is not None:
            check_output(path, option=option, inputs=taken, made=holds(_MARK))
            taken.append(path)
    sides = _sides(arguments.pairs, len(paths))
    names = _names(arguments.names, len(paths) // 2 if sides else len(paths))
    if sides:
        named = [name or path.stem for name, path in zip(names, paths[::2], strict=True)]
        names = [f"{name} {side}" for name in named for side in sides]
    if not sides:
        names = _shortened(names, paths)
    runs = [plot.read_run(path, name) for path, name in zip(paths, names, strict=True)]
    over = arguments.smooth or plot.window(runs)
    if arguments.png is not None or arguments.html is not None:
        picture = plot.draw(runs, over, title=arguments.title)
        if arguments.png is not None:
            write_output(arguments.png, picture, option="--png")
        if arguments.html is not None:
            page = plot.as_html(runs, over, picture)
            write_output(arguments.html, page.encode(errors="backslashreplace"), option="--html")
    if arguments.json:
        print_json(lambda: plot.as_json(runs, over))
    elif sides:
        print_table(plot.pair_columns(sides), plot.pair_rows(runs, named, over))
    else:
        print_table(plot.columns(runs), plot.rows(runs, over))
        for line in plot.notes(runs, over):
            print(printable(line))
    return 0


def _sides(text: str | None, count: int) -> list[str]:
    """The two machines of ``--pairs``; none without it."""
    if text is None:
        return []
    sides = [side.strip() for side in text.split(",")]
    if len(sides) != 2 or count % 2:
        raise BridgeError(
            "--pairs takes two names, and runs two by two.",
            evidence=f"--pairs {text}, {count} runs",
            next="accel-bridge plot --pairs GPU,NPU a-gpu.log a-npu.log b-gpu.log b-npu.log",
        )
    return sides


def _names(text: str | None, count: int) -> list[str]:
    if text is None:
        return [""] * count
    names = [name.strip() for name in text.split(",")]
    if len(names) != count:
        raise BridgeError(
            f"--names has {len(names)} names for {count} runs.",
            evidence=f"--names {text}",
            next="give one name for each run, separated by commas",
        )
    return names


def _shortened(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """Paths as names, without the directories and endings that all of them share."""
    whole = [path.with_suffix("") if path.suffix else path for path in paths]
    parts = [path.parts or (".",) for path in whole]  # the directory here has none
    if len(paths) < 2 or len(set(parts)) < len(paths):
        return list(names)
    while len({one[0] for one in parts}) == 1 and all(len(one) > 1 for one in parts):
        parts = [one[1:] for one in parts]
    while len({one[-1] for one in parts}) == 1 and all(len(one) > 1 for one in parts):
        parts = [one[:-1] for one in parts]
    short = ["/".join(one) for one in parts]
    return [name or one for name, one in zip(names, short, strict=True)]
