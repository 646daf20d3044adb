"""The report of a rehearsal: on the terminal, as JSON and as a page; and what would make it fit."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from accel_bridge.apps import _html
from accel_bridge.apps.rehearse.devices import GB, MIB, Device
from accel_bridge.apps.rehearse.estimate import Estimate, Network, estimate
from accel_bridge.apps.rehearse.matching import match, of_all, stand_for
from accel_bridge.apps.rehearse.memory import CLASSES
from accel_bridge.errors import BridgeError
from accel_bridge.process.extras import require

#: NCCL's buffers of one communicator: an estimate of 2 channels a link, 4 MiB each way and more.
COMMUNICATOR: Final = 2**20 * 20


@dataclass
class Outcome:
    """All ranks of a rehearsal, and what follows from them.

    :param problems: what would hang or fail on the cluster, one text each.
    """

    device: Device
    ranks: list[dict[str, Any]]
    command: list[str]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    network: Network = field(default_factory=Network)

    @classmethod
    def of(cls, found: dict[str, Any], device: Device, network: Network) -> Outcome:
        """Judge what the ranks left."""
        if found["launch"]:
            network = replace(network, per_node=found["launch"]["per_node"])
        outcome = cls(device, found["ranks"], found["command"], network=network)
        if found["launch"] and (more := found["launch"].get("more")):
            outcome.notes.append(f"the first training alone: the command starts {more} more")
        groups = max((one["groups"] for one in outcome.ranks), key=len)
        world = outcome.ranks[0]["world"]
        stands = stand_for([one["rank"] for one in outcome.ranks], of_all(groups, world))
        for one in outcome.ranks:
            one["stands_for"] = stands.get(one["rank"], [one["rank"]])
            one["communication_bytes"] = len(one["communicators"]) * COMMUNICATOR
            one["needs_bytes"] = one["reserved_bytes"] + one["communication_bytes"]
            one["needs_bytes"] += device.context
            one["fits"] = one["needs_bytes"] <= device.memory
            outcome.notes += [note for note in one["notes"] if note not in outcome.notes]
            turns = one["schedule"]
            if turns and turns["run"] < turns["microbatches"]:
                note = f"{turns['run']} of {turns['microbatches']:,} microbatches ran; "
                note += "the others repeat them and are counted"
                outcome.notes += [note] if note not in outcome.notes else []
            grown = one["after_steps"]
            if len(grown) > 2 and grown[-1] > grown[-2] > 0:
                outcome.problems.append(
                    f"rank {one['rank']}: step {len(grown)} leaves {grown[-1] - grown[-2]:,} bytes "
                    f"more than step {len(grown) - 1}: the training grows until it fails"
                )
        outcome.problems += match(outcome.ranks)
        return outcome

    @property
    def fits(self) -> bool:
        """Whether every rehearsed rank fits into the device's memory."""
        return all(one["fits"] for one in self.ranks)

    @property
    def others(self) -> int:
        """Ranks that no rehearsed rank stands for: other pipeline stages."""
        known = sum(len(one["stands_for"]) for one in self.ranks)
        return int(self.ranks[0]["world"]) - known

    @property
    def fullest(self) -> dict[str, Any]:
        """The rank with the most memory."""
        return max(self.ranks, key=lambda one: int(one["needs_bytes"]))

    def verdict(self) -> dict[str, Any]:
        """``fits``, ``needs_bytes`` of the fullest rank, and ``seconds`` of a step."""
        return {
            "fits": self.fits and not self.problems,
            "needs_bytes": self.fullest["needs_bytes"],
            "seconds": self.estimate().seconds,
        }

    def estimate(self) -> Estimate:
        made = (estimate(one, self.device, self.network) for one in self.ranks)
        return max(made, key=lambda one: one.seconds)


def show(outcome: Outcome, advice: list[dict[str, Any]]) -> None:
    device, full = outcome.device, outcome.fullest
    print(f"rehearsed for {device.title} ({device.memory / GB:.1f} GB)")
    for note in outcome.notes:
        print(f"  note: {note}")
    form = "  {:>6} {:>12} {:>16} {:>9} {:>9}  {}"
    print(form.format(*_RANK_COLUMNS))
    for rank, stands_for, *rest, fits in _rank_rows(outcome):
        shown = "NO" if fits == "no" else fits
        print(form.format(rank, f"{stands_for:>6} ranks", *rest, shown))
    peak = full["peak"]
    where = f"{peak['module'] or peak['operation']}'s {peak['phase']}" if peak["phase"] else ""
    print(
        f"fits in {device.memory / GB:.1f} GB: {'yes' if outcome.fits else 'no'}, "
        f"{full['needs_bytes'] / GB:.1f} GB on rank {full['rank']}; peak in {where}"
    )
    for name in CLASSES:
        if size := full["memory"].get(name):
            print(f"  {name:<16} {size / GB:>9.2f} GB")
    reserve = full["reserved_bytes"] - full["peak_bytes"]
    print(f"  {'reserve':<16} {reserve / GB:>9.2f} GB")
    print(f"  {'communicators':<16} {full['communication_bytes'] / GB:>9.2f} GB")
    print(f"  {'context':<16} {device.context / GB:>9.2f} GB")
    if rows := collectives(full):
        print(f"collectives of one step on rank {full['rank']}:")
        for row in rows:
            print(
                f"  {row['kind']:<15} {row['group']:<38} {row['count']:>6} "
                f"{row['bytes'] / GB:>9.3f} GB"
            )
    print(outcome.estimate().text())
    for line in checkpoint(outcome):
        print(line)
    for problem in outcome.problems:
        print(f"PROBLEM: {problem}")
    if advice:
        print(table(advice))


_RANK_COLUMNS: Final = ("rank", "stands for", "parameters", "peak GB", "needs GB", "fits")


def _rank_rows(outcome: Outcome) -> list[list[str]]:
    others = ["others", str(outcome.others), "not rehearsed", "", "", "? (--ranks all-kinds)"]
    return [
        [
            str(one["rank"]),
            str(len(one["stands_for"])),
            f"{one['parameters']:,}",
            f"{one['peak_bytes'] / GB:.2f}",
            f"{one['needs_bytes'] / GB:.2f}",
            "yes" if one["fits"] else "no",
        ]
        for one in outcome.ranks
    ] + ([others] if outcome.others else [])


def collectives(rank: dict[str, Any]) -> list[dict[str, Any]]:
    """The collectives of a rank's last step, by kind and group."""
    last = max((call[0] for call in rank["calls"]), default=0)
    count: Counter[tuple[str, str, int]] = Counter()
    size: Counter[tuple[str, str, int]] = Counter()
    for step, kind, group, _, _, number, _, _, times in rank["calls"]:
        if step == last and step:
            what = rank["own_groups"][group]
            key = (kind, what["what"], len(what["ranks"]))
            count[key] += times
            size[key] += times * number
    return [
        {"kind": key[0], "group": key[1], "ranks": key[2], "count": count[key], "bytes": size[key]}
        for key in sorted(count)
    ]


def checkpoint(outcome: Outcome) -> list[str]:
    """What ``--save`` would write, of each rehearsed rank and about of all."""
    sizes = {one["rank"]: sum(size for _, size in one["files"]) for one in outcome.ranks}
    if not any(sizes.values()):
        return []
    total = sum(sizes[one["rank"]] * len(one["stands_for"]) for one in outcome.ranks)
    rest = f" without {outcome.others} other ranks'" if outcome.others else ""
    return [
        f"a checkpoint writes about {total / GB:.1f} GB{rest}:",
        *(
            f"  rank {one['rank']}: {size / GB:.3f} GB to {name}"
            for one in outcome.ranks
            for name, size in one["files"]
            if size >= MIB or len(one["files"]) == 1
        ),
    ]


def as_json(outcome: Outcome, advice: list[dict[str, Any]]) -> dict[str, Any]:
    kept = (
        *("rank", "stands_for", "parameters", "peak_bytes", "reserved_bytes", "needs_bytes"),
        *("communication_bytes", "fits", "memory", "activations", "peak", "after_steps"),
        *("work", "seconds", "assumed", "files"),
    )
    return {
        "device": outcome.device.name,
        "memory_bytes": outcome.device.memory,
        "command": outcome.command,
        "fits": outcome.fits,
        "problems": outcome.problems,
        "notes": outcome.notes,
        "step": asdict(outcome.estimate()),
        "ranks": [
            {
                **{name: one[name] for name in kept},
                "device": outcome.device.name,
                "collectives": collectives(one),
            }
            for one in outcome.ranks
        ],
        "advice": advice,
    }


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
            row["refused"] = f"{error.what} {error.evidence[0]}"
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


#: Colours of the classes, from below: what stays in blues and greys, what comes and goes in warm.
_COLOURS: Final = (
    *("#1f4e79", "#2e75b6", "#9dc3e6", "#7f7f7f", "#bfbfbf"),
    *("#404040", "#f4a259", "#5b8e7d", "#bc4b51"),
)


def draw(outcome: Outcome) -> bytes:
    """Memory of the fullest rank over its last step, stacked by class, as PNG."""
    require("matplotlib")
    from matplotlib.figure import Figure

    rank = outcome.fullest
    rows = rank["curve"]
    figure = Figure(figsize=(10, 4.5), dpi=120)
    axes = figure.add_subplot()
    used = [place for place in range(len(CLASSES)) if any(row[place] for row in rows)]
    axes.stackplot(
        range(len(rows)),
        [[row[place] / GB for row in rows] for place in used],
        labels=[CLASSES[place] for place in used],
        colors=[_COLOURS[place] for place in used],
    )
    beside = rank["needs_bytes"] - rank["peak_bytes"]
    axes.axhline((outcome.device.memory - beside) / GB, color="#c00000", linewidth=1)
    axes.set_ylabel("GB")
    axes.set_xlabel("allocations of one step")
    axes.set_title(
        f"rank {rank['rank']} on {outcome.device.title}: peak {rank['peak_bytes'] / GB:.1f} GB, "
        f"needs {rank['needs_bytes'] / GB:.1f} of {outcome.device.memory / GB:.1f} GB"
    )
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": "accel-bridge rehearse"})
    return file.getvalue()


def page(outcome: Outcome, picture: bytes, advice: list[dict[str, Any]]) -> bytes:
    full = outcome.fullest
    memory = [[name, f"{full['memory'].get(name, 0) / GB:.2f}"] for name in CLASSES]
    messages = [
        [
            row["kind"],
            row["group"],
            str(row["ranks"]),
            str(row["count"]),
            f"{row['bytes'] / GB:.3f}",
        ]
        for row in collectives(full)
    ]
    parts = [
        f"<p><code>{html.escape(' '.join(outcome.command))}</code></p>",
        *(f"<p><b>{html.escape(problem)}</b></p>" for problem in outcome.problems),
        _html.paragraphs(outcome.notes),
        _html.image("memory over a step", picture),
        _html.table(_RANK_COLUMNS, _rank_rows(outcome)),
        f"<h2>At the peak of rank {full['rank']}</h2>",
        _html.table(["class", "GB"], memory),
        "<h2>Collectives of one step</h2>",
        _html.table(["kind", "group", "ranks", "count", "GB"], messages),
        _html.paragraphs([outcome.estimate().text()]),
    ]
    if advice:
        parts.append(f"<h2>What would fit</h2><pre>{html.escape(table(advice))}</pre>")
    title = f"Rehearsed for {outcome.device.title}"
    verdict = "pass" if outcome.fits and not outcome.problems else "fail"
    return _html.page("accel-bridge rehearse", title, parts, verdict=verdict).encode()
