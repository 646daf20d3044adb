"""What would make a training fit: the usual remedies, each rehearsed before it is recommended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from accel_bridge.apps.rehearse.devices import GB
from accel_bridge.errors import BridgeError


def advise(
    remedies: Sequence[dict[str, Any]], again: Callable[[Sequence[str]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rehearse each remedy that the framework's patches name for this command.

    :param remedies: ``what`` and ``flags`` of each.
    :param again: rehearses the command with more flags: ``fits``, ``needs_bytes``, ``seconds``.
    :returns: a row for each remedy: what it is, its flags, and what ``again`` found; or why the
        program refuses it.
    """
    rows = []
    for remedy in remedies:
        row: dict[str, Any] = {"what": remedy["what"], "flags": remedy["flags"]}
        try:
            row |= again(remedy["flags"])
        except BridgeError as error:
            evidence = error.evidence if isinstance(error.evidence, str) else error.evidence[0]
            row["refused"] = f"{error.what} {evidence}"
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text; what fits and costs least time comes first."""
    tried = [row for row in rows if "refused" not in row]
    tried.sort(key=lambda row: (not row["fits"], row["seconds"]))
    lines = [
        "remedies, each rehearsed:",
        f"  {'fits':<5}{'needs GB':>9}{'step s':>9}  flags to add",
    ]
    for row in tried:
        flags = " ".join(row["flags"]) or "(none: the command as it is)"
        verdict = "yes" if row["fits"] else "no"
        lines.append(
            f"  {verdict:<5}{row['needs_bytes'] / GB:>9.2f}{row['seconds']:>9.3g}  {flags}"
        )
    for row in rows:
        if "refused" in row:
            lines.append(f"  refused{'':>16}  {' '.join(row['flags'])}: {row['refused'][:160]}")
    return "\n".join(lines)
