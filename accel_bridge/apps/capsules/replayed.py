"""What replaying one capsule, or comparing two, says: text and JSON."""

from __future__ import annotations

import math
from typing import Any

from accel_bridge.apps.capsules._compare import Divergence, diverge
from accel_bridge.apps.capsules._judge import Finding, Judgement, judge
from accel_bridge.recording import Capsule, Operator, Value

__all__ = [
    "Divergence",
    "Finding",
    "Judgement",
    "as_json",
    "diverge",
    "judge",
    "lines_of_one",
    "lines_of_two",
]


def lines_of_one(capsule: Capsule, found: Judgement, judged: str) -> list[str]:
    """The verdict on one capsule.

    :param judged: whose results they are, in words.
    """
    skipped = sum(found.skipped.values())
    lines = [
        f"{capsule.module} at step {capsule.step}: {found.judged} operators of "
        f"{len(capsule.ranks)} ranks compared with float64, {skipped} could not be",
        *(f"  {count} x {reason}" for reason, count in _most(found.skipped)),
    ]
    if found.parts:
        lines.append(
            f"  {found.parts} of those compared are larger than the file: on some of their rows, "
            f"columns or heads; {found.sums} results that are sums over all rows are left out"
        )
    if not found.findings:
        return [
            *lines,
            f"PASS: every operator is as near to float64 as {capsule.precision} allows ({judged})",
            "an error in what the program computes shows against another run's capsule: "
            "accel-bridge parity replay A.capsule B.capsule",
        ]
    first = found.findings[0]
    lines.append(f"FAIL: the first operator that is too far from float64 ({judged})")
    whole = capsule.ranks[first.rank][first.place]
    part = [] if whole.inputs == first.operator.inputs else [_shapes(capsule, first.operator)]
    return [
        *lines,
        *_described(capsule, whole, first.rank),
        *(f"  of which  {text}" for text in part),
        *_numbers(capsule, first),
    ]


def lines_of_two(a: Capsule, b: Capsule, found: Divergence | None) -> list[str]:
    """The verdict on two."""
    counts = " and ".join(str(sum(map(len, one.ranks))) for one in (a, b))
    lines = [f"{a.module} at step {a.step}: {counts} operators"]
    if found is None:
        return [*lines, "PASS: operator by operator, both agree"]
    lines.append(f"FAIL: they part here: {found.why}")
    for letter, capsule, one in (("A", a, found.a), ("B", b, found.b)):
        if one is not None:
            lines += [f"{letter}:", *_described(capsule, one, found.rank)]
    if found.finding is not None:
        lines += _numbers(a if found.a is not None else b, found.finding)
    else:
        lines.append(f"from here on results differ by {found.distance:.2g} of their size")
        for letter, capsule, one in (("A", a, found.a), ("B", b, found.b)):
            if one is not None:
                lines += [f"{letter} {text}" for text in _values(capsule, one)]
    return lines


def as_json(a: Capsule, found: Judgement | Divergence | None) -> dict[str, Any]:
    """The verdict as a JSON document."""
    first = found.findings[0] if isinstance(found, Judgement) and found.findings else None
    if isinstance(found, Divergence):
        operator: Operator | None = found.b or found.a
    else:
        operator = None if first is None else first.operator
    return {
        "format": 1,
        "passed": operator is None,
        "module": a.module,
        "step": a.step,
        "judged": found.judged if isinstance(found, Judgement) else None,
        "skipped": found.skipped if isinstance(found, Judgement) else None,
        "parts": found.parts if isinstance(found, Judgement) else None,
        "why": found.why if isinstance(found, Divergence) else None,
        "operator": None if operator is None else operator.name,
        "phase": None if operator is None else operator.phase,
        "in": None if operator is None else operator.module,
        "site": None if operator is None else operator.site,
        "kernel": None if operator is None else operator.kernel,
        "error": None if first is None else _finite(first.error),
        "allowed": None if first is None else _finite(first.allowed),
    }


def _described(capsule: Capsule, one: Operator, rank: int) -> list[str]:
    lines = [
        f"  operator  {one.name}, {one.phase}, rank {rank}",
        f"  module    {one.module or '(none)'}",
        f"  line      {one.site}",
        f"  shapes    {_shapes(capsule, one)}",
    ]
    if one.kernel:
        lines.insert(3, f"  kernel    {one.kernel}")
    return lines


def _shapes(capsule: Capsule, one: Operator) -> str:
    inputs, outputs = (
        ", ".join(_shape(capsule.values[index]) for index in found if index >= 0)
        for found in (one.inputs, one.outputs)
    )
    return f"{inputs} -> {outputs}"


def _shape(value: Value) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _numbers(capsule: Capsule, first: Finding) -> list[str]:
    return [
        f"  result {first.output} is off by {first.error:.2g} of its size; {capsule.precision} "
        f"explains {first.allowed:.2g}",
        f"  where it is furthest off: {first.recorded:.8g}, float64 gives {first.exact:.8g}",
    ]


def _values(capsule: Capsule, one: Operator) -> list[str]:
    return [
        f"result {number}: rms {value.moments.rms:.6g}, mean {value.moments.mean:.6g}, begins "
        + ", ".join(f"{item:.6g}" for item in value.sample[:3])
        for number, value in enumerate(capsule.values[index] for index in one.outputs)
    ][:4]


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:5]


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
