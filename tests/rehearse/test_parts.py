"""The parts of a rehearsal by themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accel_bridge.apps.rehearse import devices
from accel_bridge.apps.rehearse.allocator import MIB, simulate
from accel_bridge.apps.rehearse.command import main
from accel_bridge.apps.rehearse.kinds import of_all, stand_for
from accel_bridge.apps.rehearse.matching import match
from accel_bridge.errors import BridgeError


@pytest.mark.parametrize(
    ("sizes", "events", "allocated", "reserved"),
    [
        # 512 bytes at least; small blocks share a segment of 2 MiB.
        ([1, 600], [0, 1], 512 + 1024, 2 * MIB),
        # From 1 MiB to 10 MiB: a segment of 20 MiB.
        ([2 * MIB, 3 * MIB], [0, 1], 5 * MIB, 20 * MIB),
        # Larger ones: their own, in steps of 2 MiB; what is not split off counts.
        ([11 * MIB - 100], [0], 12 * MIB, 12 * MIB),
        # What is free again serves the next, and neighbours grow together.
        ([12 * MIB, 12 * MIB, 24 * MIB], [0, ~0, 1], 12 * MIB, 12 * MIB),
        ([2 * MIB, 2 * MIB, 9 * MIB], [0, 1, ~0, ~1, 2], 9 * MIB, 20 * MIB),
    ],
)
def test_allocator(sizes: list[int], events: list[int], allocated: int, reserved: int) -> None:
    usage = simulate(events, sizes)
    assert (usage.allocated, usage.reserved) == (allocated, reserved)


def test_memory_is_within_three_percent_of_every_measured_row() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    rows = json.loads((docs / "rehearsed-memory.json").read_text())
    measured = {
        row["model"]: row["gigabytes"]
        for row in json.loads((docs / "performance.json").read_text())
        if row["way"] == "bridge"
    }
    assert len(rows) > 10
    for row in rows:
        assert row["measured"] == measured[row["model"]]
        assert row["rehearsed"] == pytest.approx(row["measured"], rel=0.03), row["model"]


def test_devices() -> None:
    assert devices.find("gb:80").memory == 80 * 10**9
    with pytest.raises(devices.DeviceNameError):
        devices.find("h1000")


def test_kinds_of_ranks() -> None:
    groups = [
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [0, 4]},
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [1, 5]},
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [2, 6]},
        {"what": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": [3, 7]},
        *({"what": "DATA_PARALLEL_GROUP", "ranks": [a, a + 2]} for a in (0, 1, 4, 5)),
    ]
    kinds = of_all(groups, 8)
    assert sorted(map(sorted, kinds.values())) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert stand_for([0, 2, 4, 7], kinds) == {0: [0, 1], 2: [2, 3], 4: [4, 5], 7: [6, 7]}
    assert stand_for([0, 7], kinds) == {0: [0, 1, 2, 3], 7: [4, 5, 6, 7]}


def _rank(rank: int, *calls: tuple[Any, ...]) -> dict[str, Any]:
    return {
        "rank": rank,
        "own_groups": [{"what": "TP", "ranks": [0, 1]}],
        "calls": [
            [1, kind, 0, "bfloat16", [[size]], 2 * size, peer, f"a.py:{size}"]
            for kind, size, peer in calls
        ],
    }


def test_matching() -> None:
    same = [("all_reduce", 4, -1), ("broadcast", 8, 0)]
    assert match([_rank(0, *same), _rank(1, *same)]) == []
    (problem,) = match([_rank(0, *same), _rank(1, *reversed(same))])
    assert "all_reduce" in problem
    assert "broadcast" in problem
    assert "a.py:4" in problem
    assert "a.py:8" in problem
    assert match([_rank(0, ("send", 4, 1)), _rank(1, ("recv", 4, 0))]) == []
    assert match([_rank(0, ("send", 4, 1)), _rank(1, ("recv", 5, 0))])
    assert match([_rank(0, ("send", 4, 1)), _rank(1)])


def test_nothing_is_kept_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(BridgeError, match="nothing is written over"):
        main(["--keep", str(tmp_path), "--", "true"])
