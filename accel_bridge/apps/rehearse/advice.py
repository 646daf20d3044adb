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

    Where none is enough, those that save most are taken together, one more each time.

    :param remedies: ``what`` and ``flags`` of each.
    :param again: rehearses the command with more flags: ``fits``, ``needs_bytes``, ``seconds``.
    :returns: a row for each remedy and combination: what it is, its flags, and what ``again``
        found; or why the program refuses it.
    """

    def tried(what: str, flags: list[str]) -> dict[str, Any]:
        row: dict[str, Any] = {"what": what, "flags": flags}
        try:
            row |= again(flags)
        except BridgeError as error:
            evidence = error.evidence if isinstance(error.evidence, str) else error.evidence[0]
            row["refused"] = f"{error.what} {evidence}"
        return row

    rows = [tried(one["what"], one["flags"]) for one in remedies]
    accepted = sorted((row for row in rows if "refused" not in row), key=_needs)
    if not accepted or any(row["fits"] for row in accepted):
        return rows
    best = accepted[0]
    for row in accepted[1:]:
        if _options(row["flags"]) & _options(best["flags"]):
            continue
        both = tried(f"{best['what']}, {row['what']}", [*best["flags"], *row["flags"]])
        rows.append(both)
        if "refused" not in both and both["needs_bytes"] < best["needs_bytes"]:
            best = both
            if best["fits"]:
                break
    return rows


def _needs(row: dict[str, Any]) -> int:
    return int(row["needs_bytes"])


def _options(flags: Sequence[str]) -> set[str]:
    return {one for one in flags if one.startswith("--")}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text; what fits and costs least time comes first."""
    tried = [row for row in rows if "refused" not in row]
    tried.sort(key=lambda row: (not row["fits"], row["seconds"]))
    if len(rows) == 1:
        return "no remedy is known for this command"
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
