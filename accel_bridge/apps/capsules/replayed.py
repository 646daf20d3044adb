"""Two capsules of one module, operator by operator; and what comparing or replaying says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any, Final

from accel_bridge.apps._html import finite
from accel_bridge.apps.capsules._judge import Finding, Judgement, judge, moves
from accel_bridge.apps.comparison import LIMITS
from accel_bridge.recording import Capsule, Operator, Value

#: Share of a recording's limit for tensors that two runs of the same operators may differ by.
SHARE: Final = 0.2

#: Relative difference of one machine's results that is more than none.
_SAME: Final = 1e-6
#: Distance of two values whose bits differ and whose samples do not.
_LEAST: Final = 1e-12
_SAME_INPUTS: Final = "its inputs agree and its results differ"


@dataclass(frozen=True, slots=True)
class Row:
    """One operator of both.

    :param a: its place in A, or None where only B has it.
    :param b: its place in B, or None.
    :param distance: largest relative difference of its results; NaN where only one has it.
    :param inputs: the same of what it read.
    """

    a: int | None
    b: int | None
    distance: float
    inputs: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first operator at which two capsules part.

    :param rank: B's; of an operator that only A has, too.
    :param why: in words.
    :param a: A's operator, None where A has none.
    :param b: B's.
    :param distance: by which the results differ from here on.
    :param finding: the operator's departure from float64, where it is one.
    :param structural: the operators themselves or their arguments differ.
    :param rank_of_a: A's, where pipeline stages give it another number.
    """

    rank: int
    place: int
    why: str
    a: Operator | None
    b: Operator | None
    distance: float
    finding: Finding | None = None
    structural: bool = False
    rank_of_a: int | None = None


def diverge(a: Capsule, b: Capsule, bitwise: bool = False) -> Divergence | None:
    """The first operator at which they part; None where all agree.

    :param bitwise: any bit counts: the same program ran twice.
    """
    ours, theirs, numbers = _lined_up(a, b)
    found = [
        replace(one, rank=theirs_is, rank_of_a=ours_is)
        for rank, (ours_is, theirs_is) in enumerate(numbers)
        if (one := _of_rank(ours, theirs, rank, bitwise)) is not None
    ]
    if bitwise:
        return min(found, key=lambda one: one.place, default=None)
    for letter, capsule in (("A", a), ("B", b)):
        for finding in judge(capsule).findings:
            why = f"{letter}'s result is not what float64 makes of its inputs"
            one = Divergence(finding.rank, finding.place, why, None, None, finding.error)
            found.append(replace(_of(one, letter, finding.operator), finding=finding))
    return min(found, key=lambda one: (one.place, one.finding is None), default=None)


def _lined_up(a: Capsule, b: Capsule) -> tuple[Capsule, Capsule, list[tuple[int, int]]]:
    """Both with the ranks that run the module, and the numbers of each pair: stages hold others."""
    numbers = [[rank for rank, ran in enumerate(one.ranks) if ran] for one in (a, b)]
    ours, theirs = (
        replace(one, ranks=type(one.ranks)(one.ranks[rank] for rank in own))
        for one, own in zip((a, b), numbers, strict=True)
    )
    return ours, theirs, list(zip(*numbers, strict=False))


def rows(a: Capsule, b: Capsule, rank: int) -> Iterator[Row]:
    """Both capsules' operators of a rank side by side, in the order in which they ran."""
    ours, theirs = a.ranks[rank], b.ranks[rank]
    matcher = SequenceMatcher(None, _keys(ours), _keys(theirs), autojunk=False)
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind == "equal":
            for one, two in zip(range(i, i_end), range(j, j_end), strict=True):
                x, y = ours[one], theirs[two]
                yield Row(one, two, *(_far(a, b, x, y, part) for part in ("outputs", "inputs")))
            continue
        yield from (Row(one, None, math.nan, math.nan) for one in range(i, i_end))
        yield from (Row(None, two, math.nan, math.nan) for two in range(j, j_end))


def _of_rank(a: Capsule, b: Capsule, rank: int, bitwise: bool) -> Divergence | None:
    limit, noise = SHARE * LIMITS[a.precision].tensor, 0.0
    alike = all(a.about.get(name) == b.about.get(name) for name in ("device name", "torch"))
    before: list[Row] = []
    for row in rows(a, b, rank):
        if row.a is not None and row.b is not None and max(row.distance, row.inputs) > 0.0:
            size = max(row.distance, row.inputs)
            # One machine computes the same bits twice, so that less says more there.
            own = min(limit, max(10 * noise, _SAME)) if alike else limit
            if bitwise or size > limit:
                return _named(a, b, rank, row, before, 0.0 if bitwise else limit)
            if size > own and (found := _named(a, b, rank, row, before, own)).structural:
                return found
            noise = max(noise, size)
        before.append(row)
    return _unread(a, b, rank, before)


def _unread(a: Capsule, b: Capsule, rank: int, all_rows: Sequence[Row]) -> Divergence | None:
    """What only one of them does in place, where the other does nothing.

    No operator reads the result within the module, so no later row shows it.
    """
    for matched, group in groupby(all_rows, lambda row: row.a is not None and row.b is not None):
        block = list(group)
        if matched or len({row.a is None for row in block}) != 1:
            continue  # each has operators of its own here: two ways to one result, for all we know
        letter, capsule = ("B", b) if block[0].a is None else ("A", a)
        for row in block:
            place = row.a if row.b is None else row.b
            assert place is not None
            size = _changes(capsule, capsule.ranks[rank], place)
            if size > _SAME:
                alone = Divergence(rank, place, f"only {letter} runs it", None, None, size)
                return replace(_of(alone, letter, capsule.ranks[rank][place]), structural=True)
    return None


def _changes(capsule: Capsule, operators: Sequence[Operator], place: int) -> float:
    """By how much of its size an operator changes a tensor that nothing reads afterwards."""
    operator = operators[place]
    if not operator.changed:
        return 0.0
    made = operator.outputs[len(operator.outputs) - len(operator.changed) :]
    later = {index for one in operators[place + 1 :] for index in one.inputs}
    pairs = zip([operator.inputs[index] for index in operator.changed], made, strict=True)
    values = capsule.values
    return max(
        (apart(values[x], values[y]) for x, y in pairs if x >= 0 and y not in later), default=0.0
    )


def _named(
    a: Capsule, b: Capsule, rank: int, row: Row, before: Sequence[Row], limit: float
) -> Divergence:
    """The operator by which ``row`` departs: itself, or one that only A or only B has run."""
    ours, theirs = a.ranks[rank], b.ranks[rank]
    assert row.a is not None
    assert row.b is not None
    one, two = ours[row.a], theirs[row.b]
    size = max(row.distance, row.inputs)
    if row.inputs <= limit:
        other = list(_unlike(_arguments(one), _arguments(two)))
        unlike = f"it is called with other arguments: {', '.join(other[:3])}"
        why = unlike if other else _SAME_INPUTS
        return Divergence(rank, row.a, why, one, two, size, structural=bool(other))
    only_b = {item.b for item in before if item.a is None and item.b is not None}
    only_a = {item.a for item in before if item.b is None and item.a is not None}
    for letter, operators, last, only in (("B", theirs, row.b, only_b), ("A", ours, row.a, only_a)):
        chain = [place for place in _behind(operators, last) if place in only]
        computes = [place for place in chain if not moves(operators[place])] or chain
        if computes:
            place = computes[0]
            alone = Divergence(rank, place, f"only {letter} runs it", None, None, size)
            return replace(_of(alone, letter, operators[place]), structural=True)
    why = "what it reads differs already: that comes from outside the module"
    return Divergence(rank, row.a, why, one, two, size)


def _of(one: Divergence, letter: str, operator: Operator) -> Divergence:
    """With the operator that A or B has run."""
    return replace(one, a=operator) if letter == "A" else replace(one, b=operator)


def _behind(operators: Sequence[Operator], last: int) -> list[int]:
    """The operators whose results the operator ``last`` depends on, in order."""
    made: dict[int, int] = {}
    for place in range(last):
        for index in operators[place].outputs:
            made.setdefault(index, place)
    found: set[int] = set()
    wanted = [last]
    while wanted:
        for index in operators[wanted.pop()].inputs:
            maker = made.get(index)
            if maker is not None and maker not in found and maker < last:
                found.add(maker)
                wanted.append(maker)
    return sorted(found)


def _keys(operators: Sequence[Operator]) -> list[tuple[str, str, str, str]]:
    """What two operators must share to be the same; the function that called, but no line."""
    return [(one.phase, one.module, one.name, one.site.rpartition(" ")[2]) for one in operators]


def _arguments(operator: Operator) -> object:
    """The arguments without what names a machine or a file."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return None if "x" in value else {k: plain(v) for k, v in value.items()}
        return [plain(one) for one in value] if isinstance(value, list) else value

    return plain(operator.arguments)


def _unlike(one: object, two: object, name: str = "") -> Iterator[str]:
    """The arguments that differ."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        for key in one:
            yield from _unlike(one[key], two[key], f"{key} ")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for x, y in zip(one, two, strict=True):
            yield from _unlike(x, y, name)
    elif one != two:
        yield f"{name}{str(one)[:60]} | {str(two)[:60]}"


def _far(a: Capsule, b: Capsule, one: Operator, two: Operator, part: str) -> float:
    pairs = [
        (a.values[x], b.values[y])
        for place, (x, y) in enumerate(zip(getattr(one, part), getattr(two, part), strict=False))
        # What it writes may have held anything before.
        if x >= 0 and y >= 0 and (part == "outputs" or place not in one.changed)
    ]
    return max((apart(x, y) for x, y in pairs), default=0.0)


def apart(x: Value, y: Value) -> float:
    """How far apart two values are, relative to their root mean square; 0 for equal bits."""
    if x.digest == y.digest or x.shape != y.shape:
        return 0.0  # shapes differ with the layout
    scale = max(x.moments.rms, y.moments.rms)
    pairs = list(zip(x.sample, y.sample, strict=False))
    values = math.sqrt(math.fsum((p - q) ** 2 for p, q in pairs) / max(len(pairs), 1))
    moments = max(abs(x.moments.rms - y.moments.rms), abs(x.moments.mean - y.moments.mean))
    found = max(values, moments) / scale if scale else 0.0
    # Other bits behind equal samples are a difference too.
    return math.inf if math.isnan(found) else max(found, _LEAST)


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
        *_most_wrong(capsule, first),
    ]


def lines_of_two(a: Capsule, b: Capsule, found: Divergence | None) -> list[str]:
    """The verdict on two."""
    counts = " and ".join(str(sum(map(len, one.ranks))) for one in (a, b))
    lines = [f"{a.module} at step {a.step}: {counts} operators"]
    if found is None:
        return [*lines, "PASS: operator by operator, both agree"]
    lines.append(f"FAIL: they part here: {found.why}")
    of_a = found.rank if found.rank_of_a is None else found.rank_of_a
    for letter, capsule, one, rank in (("A", a, found.a, of_a), ("B", b, found.b, found.rank)):
        if one is not None:
            lines += [f"{letter}:", *_described(capsule, one, rank)]
    if found.finding is not None:
        lines += _most_wrong(a if found.a is not None else b, found.finding)
    else:
        lines.append(f"from here on results differ by {found.distance:.2g} of their size")
        for letter, capsule, one in (("A", a, found.a), ("B", b, found.b)):
            if one is not None:
                lines += [f"{letter} {text}" for text in _values(capsule, one)]
    return lines


def as_json(a: Capsule, found: Judgement | Divergence | None) -> dict[str, Any]:
    first = found.findings[0] if isinstance(found, Judgement) and found.findings else None
    if isinstance(found, Divergence):
        operator: Operator | None = found.b or found.a
    else:
        operator = None if first is None else first.operator
    own = ("phase", "site", "kernel")
    names = {"operator": "name", "in": "module", **dict(zip(own, own, strict=True))}
    judged = found if isinstance(found, Judgement) else None
    return {
        "format": 1,
        "passed": operator is None,
        "module": a.module,
        "step": a.step,
        **{name: judged and getattr(judged, name) for name in ("judged", "skipped", "parts")},
        "why": found.why if isinstance(found, Divergence) else None,
        **{name: operator and getattr(operator, of) for name, of in names.items()},
        "error": None if first is None else finite(first.error),
        "allowed": None if first is None else finite(first.allowed),
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
    def some(indices: Sequence[int]) -> str:
        found = [_shape(capsule.values[index]) for index in indices if index >= 0]
        return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")

    return f"{some(one.inputs)} -> {some(one.outputs)}"


def _shape(value: Value) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _most_wrong(capsule: Capsule, first: Finding) -> list[str]:
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
