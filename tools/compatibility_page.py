"""docs/compatibility.md: what was run on which Megatron, and what came of it.

It is made from the committed results in tools/compatibility (tools/compatibility_results.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from charts import Bar, bars, table
from compatibility_results import KINDS, OUTCOMES, ROOT, Row, Run, runs
from targets import ordered

_INTRODUCTION: Final = """\
# Compatibility

<img src="images/compatibility.svg" alt="Layouts of each Megatron version, by outcome" width="720">

What was run on which Megatron, unedited. Each training layout starts from one checkpoint and is
compared with one process, dense and with experts: passed/run, largest difference of a loss.
Commands and dates: `tools/compatibility/*.json`.

"""
_SAME: Final = """\
The same weights and data, five steps in float32 (`tests/conformance/parity/versions.py`).

"""
_REASONS: Final = 1


def page() -> str:
    """The whole page."""
    cells = newest(runs())
    rows = "".join(f"| {name} | {means} |\n" for name, means in OUTCOMES.items())
    parts = [_INTRODUCTION, "## Training layouts\n\n", layouts_table(cells)]
    parts += ["\n## The same training on each\n\n", _SAME, same_training_table()]
    parts += ["\n## Megatron's own tests, recipes, models and tools\n\n", counts_table(cells)]
    parts += [f"\n| outcome | means |\n|---|---|\n{rows}"]
    parts += ["\n## Why some did not pass\n\n", reasons_table(cells)]
    parts += ["\n## Patches\n\n", patches_table()]
    return "".join(parts)


def newest(done: Iterable[Run]) -> list[tuple[Run, Row]]:
    """The rows of each (kind, backend, version, subject, case) in the newest run that has it."""
    cells: dict[tuple[str, ...], tuple[Run, list[Row]]] = {}
    for run in done:  # oldest first
        for row in run.rows:
            key = (run.kind, run.backend, row.megatron, row.subject, row.case)
            if key not in cells or cells[key][0] is not run:
                cells[key] = (run, [])
            cells[key][1].append(row)
    found = [(run, row) for run, rows in cells.values() for row in rows]
    # A test of several numbers of ranks has one verdict over all of them.
    together = {(run.kind, run.backend) for run, row in found if row.case == "together"}
    return [
        (run, row)
        for run, row in found
        if row.case == "together" or (run.kind, run.backend) not in together
    ]


def _layouts(cells: Sequence[tuple[Run, Row]]) -> dict[str, list[Row]]:
    """Version -> the rows of layouts."""
    mine = [row for run, row in cells if run.kind == "matrix"]
    return {
        v: [row for row in mine if row.megatron == v]
        for v in ordered({row.megatron for row in mine})
    }


def chart() -> str:
    """Layouts by outcome, a bar for each version."""
    layouts = _layouts(newest(runs()))
    seen = {row.outcome for mine in layouts.values() for row in mine}
    order = [outcome for outcome in OUTCOMES if outcome in seen]
    rows = []
    for version, mine in layouts.items():
        counts = Counter(row.outcome for row in mine)
        parts = [(counts[outcome], order.index(outcome)) for outcome in order]
        rows.append(Bar(f"megatron-core {version}", parts, f"{counts['passed']} of {len(mine)}"))
    return bars("Training layouts compared with one process, on the CPU", rows, series=order)


def layouts_table(cells: Sequence[tuple[Run, Row]]) -> str:
    """Passed of run, and the largest difference of a loss, by precision."""
    lines = []
    for version, mine in _layouts(cells).items():
        texts = []
        for precision in ("fp32", "bf16"):
            some = [row for row in mine if precision in row.subject]
            passed = [row for row in some if row.outcome == "passed"]
            worst = max((row.value or 0.0 for row in passed if row.case != "injected"), default=0.0)
            texts.append(f"{len(passed)}/{len(some)}, {worst:.0e}" if some else "")
        others = Counter(row.outcome for row in mine if row.outcome != "passed")
        rest = ", ".join(f"{count} {outcome}" for outcome, count in others.items())
        lines.append((version, *texts, rest))
    head = ("megatron-core", "float32", "bfloat16", "the others")
    return _table(head, lines)


def same_training_table() -> str:
    """The loss of one training on every Megatron: those in a row of which none departs, as one."""
    lines: list[tuple[str, ...]] = []
    groups: list[list[Any]] = []
    for row in json.loads((ROOT / "tools/versions.json").read_text(encoding="utf-8")):
        if not groups or groups[-1][0]["model"] != row["model"] or row["departs"]:
            groups.append([])
        groups[-1].append(row)
    for group in groups:
        first, last = group[0], group[-1]
        names = " to ".join(dict.fromkeys((first["megatron"], last["megatron"])))
        loss = "" if first["loss"] is None else f"{first['loss']:.6f}"
        far = max((row["first"] or 0.0 for row in group), default=0.0)
        why = ": ".join(filter(None, (first["departs"], first["reason"])))
        lines.append((first["model"], names, loss, f"{far:.0e}" if far else "0", why))
    head = ("model", "megatron-core", "loss", "off by at most", "departs from the one before")
    return _table(head, lines)


def counts_table(cells: Sequence[tuple[Run, Row]]) -> str:
    """Outcomes of everything else, a row for each kind and backend."""
    groups: dict[tuple[str, ...], Counter[str]] = {}
    for run, row in cells:
        if run.kind == "matrix":
            continue
        key = (KINDS[run.kind], run.backend, row.megatron)
        groups.setdefault(key, Counter())[row.outcome] += row.count
    lines = [
        (
            *key,
            str(found["passed"]),
            ", ".join(f"{n} {one}" for one in list(OUTCOMES)[1:] if (n := found[one])),
        )
        for key, found in groups.items()
    ]
    return _table(("what", "on", "megatron-core", "passed", "the others"), lines)


def reasons_table(cells: Sequence[tuple[Run, Row]]) -> str:
    """The most frequent reasons of each kind and outcome."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for run, row in cells:
        if row.outcome != "passed":
            found = counts.setdefault((KINDS[run.kind], row.outcome), Counter())
            found[row.reason] += row.count
    lines = [
        (kind, outcome, str(count), reason)
        for (kind, outcome), found in counts.items()
        for reason, count in found.most_common(_REASONS if outcome != "failed" else None)
    ]
    lines.sort(key=lambda line: (line[0], list(OUTCOMES).index(line[1]), -int(line[2])))
    text = "The most frequent reason of each, and every failure.\n\n"
    return text + _table(("what", "outcome", "count", "reason"), lines)


def patches_table() -> str:
    """How the patches fit each version that they know."""
    from accel_bridge.patching import Fit, against_version, known_versions
    from accel_bridge.plugins.manager import load_plugins

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
        counts = f"{fits[Fit.OK]}/{fits[Fit.NEEDLESS]}"
        rows.append((version, f"{counts}; {others}" if others else counts))
    text = "`accel-bridge patches --against VERSION` names each patch and the reason.\n\n"
    return text + _table(("megatron-core", "fit/not needed; do not fit"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return table(head, (map(_safe, cells) for cells in rows))


def _safe(text: str) -> str:
    """Text that breaks neither the table nor the page."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split())).replace("<", "&lt;")
