"""A picture of a terminal in which a command really ran: python tools/terminal.py OUT.svg COMMAND.

Lines are cut at 96 columns; of a long output the first and the last lines are kept.
"""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

_COLUMNS: Final = 96
_FIRST, _LAST = 6, 16
#: Rich's own has a web font, which a page without a network cannot show.
_FORMAT: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:{char_height}px;
line-height:{line_height}px;font-variant-east-asian:full-width}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect width="{width}" height="{height}"/></clipPath>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#1b2430"/>
<g transform="translate(14, 14)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def main(words: list[str]) -> int:
    """Run the command, and draw what it printed; its exit status."""
    out, command = Path(words[0]), words[1:]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if len(lines) > _FIRST + _LAST:
        lines = [*lines[:_FIRST], "...", *lines[-_LAST:]]
    console = Console(record=True, width=_COLUMNS + 2, file=io.StringIO(), force_terminal=True)
    console.print(Text(f"$ {shlex.join(command)}", style="bold green"))
    for line in lines:
        short = line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…"
        console.print(Text(short, style="default"))
    out.write_text(console.export_svg(code_format=_FORMAT, unique_id="t"), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
