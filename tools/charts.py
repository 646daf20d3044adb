"""Tables in Markdown, and bar charts of measured results as SVG, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_STYLE: Final = """\
text{font:13px system-ui,sans-serif;fill:#1f2933}
.title{font-size:15px;font-weight:600}.note{fill:#52606d}
.line{stroke:#9fb3c8;stroke-dasharray:4 3}
@media(prefers-color-scheme:dark){text{fill:#e4e7eb}.note{fill:#9fb3c8}}"""
_COLOURS: Final = ("#1976d2", "#f9a825", "#2e7d32", "#8e24aa", "#9fb3c8")
_WIDTH: Final = 760
_LABELS: Final = 300
_ROW: Final = 24


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled bar of one or several stacked parts.

    :param parts: (length, series) of each part; series index the chart's colours.
    :param text: what stands at its end.
    """

    label: str
    parts: Sequence[tuple[float, int]]
    text: str


def bars(
    title: str, rows: Sequence[Bar], *, series: Sequence[str] = (), mark: float | None = None
) -> str:
    """A chart of horizontal bars from zero.

    :param series: names of the parts, for a legend.
    :param mark: a value at which a dashed line stands.
    """
    longest = max(sum(length for length, _ in row.parts) for row in rows)
    scale = (_WIDTH - _LABELS - 110) / longest
    top = 62 if series else 40
    height = top + _ROW * len(rows) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="8" y="22">{escape(title)}</text>',
    ]
    x = 8.0
    for index, name in enumerate(series):
        lines.append(
            f'<rect x="{x:.0f}" y="36" width="12" height="12" fill="{_COLOURS[index]}"/>'
            f'<text class="note" x="{x + 17:.0f}" y="47">{escape(name)}</text>'
        )
        x += 40 + 7.0 * len(name)
    for at, row in enumerate(rows):
        y = top + at * _ROW
        lines.append(
            f'<text x="{_LABELS - 8}" y="{y + 14}" text-anchor="end">{escape(row.label)}</text>'
        )
        x = float(_LABELS)
        for length, index in row.parts:
            lines.append(
                f'<rect x="{x:.1f}" y="{y + 2}" width="{length * scale:.1f}" height="16" '
                f'fill="{_COLOURS[index]}"/>'
            )
            x += length * scale
        lines.append(f'<text class="note" x="{x + 6:.1f}" y="{y + 14}">{escape(row.text)}</text>')
    if mark is not None:
        x = _LABELS + mark * scale
        lines.append(
            f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4}" y2="{height - 8}"/>'
        )
    return "\n".join([*lines, "</svg>\n"])
