"""How commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from accel_bridge.errors import printable

#: What JSON leaves as it is and a terminal does not: DEL, C1, directions of text, surrogates.
_UNSAFE: Final = re.compile(
    "[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def print_json(build: Callable[[], object]) -> None:
    """Print what ``build`` returns; whatever is printed while it runs goes to stderr."""
    with only_stderr():
        document = build()
    text = json.dumps(document, indent=2, ensure_ascii=False)
    print(_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


@contextlib.contextmanager
def only_stderr() -> Iterator[None]:
    """Send prints of plugins and libraries to stderr, so that stdout holds the answer alone."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def print_heading(title: str) -> None:
    print(f"\n{title}\n{'-' * len(title)}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: ruled on a terminal; elsewhere plain aligned text where nothing is cut off.

    Cells may come from files: what would act on a terminal is shown as an escape.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    if not rows:
        print("(none)")
    elif sys.stdout.isatty():
        _print_ruled(columns, rows)
    else:
        _print_plain(columns, rows)


def _print_ruled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    # What has no spaces is a name, and is never cut; prose takes the room that is left.
    least = [
        max(len(word) for row in (columns, *rows) for word in row[index].split() or [""])
        for index in range(len(columns))
    ]
    if sum(least) + 2 * len(least) > console.width:
        _print_records(columns, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, width in zip(columns, least, strict=True):
        table.add_column(column, overflow="fold", min_width=width)
    for row in rows:
        # Text: square brackets in a reason are not markup.
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _print_records(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Each row as lines of its own, where a table would break its names."""
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            if cell:
                print(f"{column}: {cell}" if column else cell)
        print()


def _print_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # The last column is not padded: reasons are long.
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    widths[-1] = 0
    for row in (columns, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
