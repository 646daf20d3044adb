"""What commands write: pages, each one file that needs no other, and numbers of JSON documents."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

_STYLE: Final = """\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
  padding: 0 1.5rem; }
h1.pass { color: #1a7f37; } h1.fail { color: #cf222e; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .2rem .7rem; text-align: left; }
td { font-variant-numeric: tabular-nums; }
tr.fail td { background: #cf222e33; } tr.outside td { opacity: .6; }
img { max-width: 100%; }
"""


def page(made_by: str, title: str, parts: Iterable[str], *, verdict: str = "") -> str:
    """A page.

    :param made_by: the command, by which a later one knows the file.
    :param title: plain text, for the window.
    :param parts: of the body, in HTML.
    :param verdict: ``pass`` or ``fail``: the title is a heading, too, in its colour.
    """
    title = html.escape(title)
    heading = [f'<h1 class="{verdict}">{title}</h1>'] if verdict else []
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="generator" content="{made_by}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
        f"<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join([*heading, *parts])
        + "\n</body>\n</html>\n"
    )


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()
) -> str:
    """A table; columns and cells are plain text.

    :param classes: of the rows: ``pass``, ``fail`` or ``outside``.
    """
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        f'<tr class="{name}">' + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row, name in zip_longest(rows, classes, fillvalue="")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def image(shows: str, picture: bytes) -> str:
    return f'<img alt="{shows}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'


def finite(value: float) -> float | str:
    """A number for JSON, which has no infinity."""
    return value if math.isfinite(value) else str(value)
