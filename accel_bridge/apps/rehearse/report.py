"""The report of a rehearsal: on the terminal and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from accel_bridge.apps.rehearse.devices import GB, MIB, Device
from accel_bridge.apps.rehearse.estimate import Estimate, Network, estimate
from accel_bridge.apps.rehearse.kinds import of_all, stand_for
from accel_bridge.apps.rehearse.matching import match
from accel_bridge.apps.rehearse.memory import CLASSES

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
        """The time of a step."""
        made = (estimate(one, self.device, self.network) for one in self.ranks)
        return max(made, key=lambda one: one.seconds)


def show(outcome: Outcome, advice: list[dict[str, Any]]) -> None:
    """Print the report."""
    device, full = outcome.device, outcome.fullest
    print(f"rehearsed for {device.title} ({device.memory / GB:.1f} GB)")
    for note in outcome.notes:
        print(f"  note: {note}")
    header = (
        f"  {'rank':>6} {'stands for':>12} {'parameters':>16} {'peak GB':>9} {'needs GB':>9}  fits"
    )
    print(header)
    for one in outcome.ranks:
        print(
            f"  {one['rank']:>6} {len(one['stands_for']):>6} ranks {one['parameters']:>16,} "
            f"{one['peak_bytes'] / GB:>9.2f} {one['needs_bytes'] / GB:>9.2f}  "
            f"{'yes' if one['fits'] else 'NO'}"
        )
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
        from accel_bridge.apps.rehearse.advice import table

        print(table(advice))


def collectives(rank: dict[str, Any]) -> list[dict[str, Any]]:
    """The collectives of a rank's last step, by kind and group."""
    last = max((call[0] for call in rank["calls"]), default=0)
    count: Counter[tuple[str, str, int]] = Counter()
    size: Counter[tuple[str, str, int]] = Counter()
    for step, kind, group, _, _, number, _, _ in rank["calls"]:
        if step == last and step:
            what = rank["own_groups"][group]
            key = (kind, what["what"], len(what["ranks"]))
            count[key] += 1
            size[key] += number
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
    return [
        f"a checkpoint writes about {total / GB:.1f} GB:",
        *(
            f"  rank {one['rank']}: {size / GB:.3f} GB to {name}"
            for one in outcome.ranks
            for name, size in one["files"]
            if size >= MIB or len(one["files"]) == 1
        ),
    ]


def as_json(outcome: Outcome, advice: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that was found."""
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
        "step": outcome.estimate().as_dict(),
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
