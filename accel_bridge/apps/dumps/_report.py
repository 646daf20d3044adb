"""What was found in dumps, in words and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from accel_bridge.apps.dumps._compare import SHOWN, Departure, Found


def as_json(found: Found) -> dict[str, Any]:
    """Everything that was found."""
    first = found.first
    return {
        **asdict(found),
        "passed": found.passed,
        "first": None if first is None else {**asdict(first), "own": first.own},
    }


def as_text(found: Found) -> str:
    """The first call that departs, then what follows from it."""
    return "\n".join(_lines(found))


def _lines(found: Found) -> Iterator[str]:
    yield f"A  {found.a}"
    yield f"B  {found.b}"
    yield f"calls in both: {found.checked}; only in A: {found.only[0]}, only in B: {found.only[1]}"
    first = found.first
    if first is None:
        yield "PASS: every call agrees"
        return
    yield f"FAIL: {len(found.departures)} calls depart"
    yield f"first operator that departs: {first.name}"
    if first.module:
        yield f"  in {first.module}"
    yield f"  results differ by {first.distance:.2g}, arguments by {first.taken:.2g}"
    yield f"  (the rule: {first.limit:.2g}): {_blame(first)}"
    for line in first.stack:
        yield f"  {line}"
    yield ""
    yield f"{'call':<60}{'results':>10}{'arguments':>12}"
    for one in found.departures[:SHOWN]:
        yield f"{one.name:<60}{one.distance:>10.2g}{one.taken:>12.2g}"
    if len(found.departures) > SHOWN:
        yield f"and {len(found.departures) - SHOWN} more"


def _blame(first: Departure) -> str:
    if first.own:
        return "the difference is made here"
    if first.only:
        return f"it comes from what only one run calls before it: {', '.join(first.only)}"
    return "it comes from its weights, or from what a dump does not show"
