"""docs/compatibility.md: what was run on which Megatron, and what came of it.

It is made from the committed results in tools/compatibility (tools/compatibility_results.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from compatibility_results import KINDS, OUTCOMES, Row, Run, runs
from packaging.version import InvalidVersion, Version

_INTRODUCTION: Final = """\
# Compatibility

Every Megatron from 0.12.1 to main, as it was run: unedited, with the bridge. This page is made by
`make docs` from the results in `tools/compatibility`, and says nothing that was not run. The
[runs](#runs) are at its end, with their commands.

"""
_COMMANDS: Final = """\
Each was started by `accel-bridge run --` in an unedited checkout. `$SIZES`, `$RUN`, `$TEXT` and so
on stand for the small sizes and the data of `tests/versions/commands.toml`; `make
megatron-commands` runs them all.
"""
_TEXTS: Final = {
    "matrix": """\
Tiny models train from one checkpoint in each layout. A number is the largest difference of a
printed loss from training in one process; `resume` saves and goes on in a second run. In `planted`
something is wrong on purpose, and the comparison must find it.
""",
    "suite": "Megatron's own tests, one process per file.\n",
    "recipes": "Megatron's functional recipes with smaller sizes.\n",
    "models": _COMMANDS,
    "training": "",
    "tools": _COMMANDS,
}


def page() -> str:
    """The whole page."""
    done = runs()
    rows = "".join(f"| {name} | {means} |\n" for name, means in OUTCOMES.items())
    parts = [_INTRODUCTION, f"## Outcomes\n\n| outcome | means |\n|---|---|\n{rows}\n"]
    parts += ["## Patches\n\n", patches_table()]
    for kind, title in KINDS.items():
        mine = [run for run in done if run.kind == kind]
        if not mine:
            continue
        parts.append(f"\n## {title}\n\n{_TEXTS[kind]}")
        for backend in dict.fromkeys(run.backend for run in mine):
            cells = newest(run for run in mine if run.backend == backend)
            parts.append(_SECTIONS[kind](f"{title}: {backend}", cells))
    parts.append(f"\n## Runs\n\n{runs_table(done)}")
    return "".join(parts)


def newest(done: Iterable[Run]) -> list[Row]:
    """The rows of each (version, subject, case) in the newest run that has it."""
    cells: dict[tuple[str, str, str], tuple[Run, list[Row]]] = {}
    for run in done:  # oldest first
        for row in run.rows:
            key = (row.megatron, row.subject, row.case)
            if key not in cells or cells[key][0] is not run:
                cells[key] = (run, [])
            cells[key][1].append(row)
    return [row for _, rows in cells.values() for row in rows]


def patches_table() -> str:
    """How the patches fit each version that they know."""
    from accel_bridge._plugins import load_plugins
    from accel_bridge.patching import Fit, against_version, known_versions

    plugins = load_plugins()
    items = plugins.patches(plugins.backends()[0].item).items
    patches = [found.item for found in items]
    rows = []
    for version in known_versions(patches):
        verdicts = against_version(patches, version)
        fits = Counter(verdict.fit for verdict in verdicts)
        others = ", ".join(
            f"{verdict.patch.id}: {verdict.fit.value}"
            for verdict in verdicts
            if verdict.fit not in (Fit.OK, Fit.NEEDLESS)
        )
        rows.append((version, str(fits[Fit.OK]), str(fits[Fit.NEEDLESS]), others or "none"))
    text = "`accel-bridge patches --against VERSION` names each patch and the reason.\n\n"
    return text + _table(("megatron-core", "fit", "not needed", "do not fit"), rows)


def _layouts(title: str, cells: Sequence[Row]) -> str:
    """Versions by layouts, a table for each model; then why cells did not pass."""
    parts = []
    for subject in dict.fromkeys(row.subject for row in cells):
        mine = {(row.megatron, row.case): row for row in cells if row.subject == subject}
        cases = list(dict.fromkeys(case for _, case in mine))
        rows = [
            (version, *(_shown(mine.get((version, case))) for case in cases))
            for version in _versions(row for row in cells if row.subject == subject)
        ]
        parts.append(f"\n### {title}, {subject}\n\n{_table(('megatron-core', *cases), rows)}")
    return "".join(parts) + _reasons(cells, "cells")


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    if row.outcome != "passed":
        return f"**{row.outcome}**"
    return "0" if row.value == 0 else "ok" if row.value is None else f"{row.value:.0e}"


def _counts(title: str, cells: Sequence[Row]) -> str:
    """Subjects by outcomes, a table for each version; then the reasons."""
    parts = []
    for version in _versions(cells):
        mine = [row for row in cells if row.megatron == version]
        # A test of several numbers of ranks has one verdict over all of them.
        mine = [row for row in mine if row.case == "together"] or mine
        counts: dict[str, Counter[str]] = {}
        for row in mine:
            for name in (row.subject, "**all**"):
                counts.setdefault(name, Counter())[row.outcome] += row.count
        total = counts.pop("**all**")
        seen = [outcome for outcome in OUTCOMES if total[outcome]]
        rows = [
            (name, str(sum(found.values())), *(str(found[outcome] or "") for outcome in seen))
            for name, found in [*sorted(counts.items()), ("**all**", total)]
        ]
        parts.append(f"\n### {title}, {version}\n\n{_table(('folder', 'run', *seen), rows)}")
        parts.append(_reasons(mine, "run"))
    return "".join(parts)


def _list(title: str, cells: Sequence[Row]) -> str:
    """Subjects with a command each, by version."""
    versions = _versions(cells)
    found = {(row.subject, row.case, row.megatron): row for row in cells}
    rows = []
    for subject, case in dict.fromkeys((row.subject, row.case) for row in cells):
        mine = [found.get((subject, case, version)) for version in versions]
        rows.append((subject, f"`{case}`", *("" if r is None else r.outcome for r in mine)))
    head = ("what", "how", *versions)
    return f"\n### {title}\n\n{_table(head, rows)}{_reasons(cells, 'runs')}"


_SECTIONS: Final = {
    "matrix": _layouts,
    "suite": _counts,
    "recipes": _counts,
    "models": _list,
    "training": _list,
    "tools": _list,
}


def _reasons(cells: Iterable[Row], unit: str) -> str:
    """Why what did not pass did not, the most frequent reason of each outcome first."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in cells:
        if row.outcome != "passed":
            counts[row.outcome, row.reason] += row.count
    order = list(OUTCOMES)
    ranked = sorted(counts.items(), key=lambda one: (order.index(one[0][0]), -one[1], one[0]))
    rows = [(outcome, str(count), reason) for (outcome, reason), count in ranked]
    return f"\n{_table(('outcome', unit, 'reason'), rows)}" if rows else ""


def runs_table(done: Sequence[Run]) -> str:
    """Every run with its date, machine and command, newest first."""
    rows = [
        (
            run.date,
            run.commit,
            f"{run.backend}; {run.machine}; "
            + ", ".join(f"{name} {version}" for name, version in run.versions.items()),
            f"`{run.command}`",
            str(sum(row.count for row in run.rows)),
        )
        for run in reversed(done)
    ]
    return _table(("date", "commit", "machine", "command", "cases"), rows)


def _versions(rows: Iterable[Row]) -> list[str]:
    """Numbers by order, then branches."""

    def key(name: str) -> tuple[bool, Version]:
        try:
            return False, Version(name)
        except InvalidVersion:
            return True, Version("0")

    return sorted({row.megatron for row in rows}, key=key)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(map(_safe, cells))} |\n" for cells in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])


def _safe(text: str) -> str:
    """Text that breaks neither the table nor the page."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split())).replace("<", "&lt;")
