"""Runs as one HTML page without any other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Final

from accel_bridge.apps._html import table
from accel_bridge.apps.plot._picture import MADE_BY
from accel_bridge.apps.plot._run import Run
from accel_bridge.apps.plot._table import columns, notes, rows


def as_html(runs: Sequence[Run], over: int, picture: bytes) -> str:
    """The picture (a PNG), the table and its notes."""
    return _PAGE.format(
        made_by=MADE_BY,
        title=html.escape(" and ".join(run.name for run in runs)),
        picture=base64.b64encode(picture).decode(),
        table=table(columns(runs), rows(runs, over)),
        notes="".join(f"<p>{html.escape(line)}</p>" for line in notes(runs, over)),
    )


_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{made_by}">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ border-bottom: 1px solid #ddd; padding: .2rem .7rem; text-align: left; }}
img {{ max-width: 100%; }}
p {{ color: #555; margin: .2rem 0; }}
</style>
</head>
<body>
{table}
{notes}
<img alt="loss and throughput" src="data:image/png;base64,{picture}">
</body>
</html>
"""
