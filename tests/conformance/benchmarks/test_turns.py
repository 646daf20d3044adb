"""Trainings load together and are measured one after the other, on GPUs and cores of their own."""

from __future__ import annotations

import importlib
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
try:
    turns: Any = importlib.import_module("turns")
    bench: Any = importlib.import_module("bench_training")
    models: Any = importlib.import_module("training_models")
finally:
    sys.path.remove(HERE)

#: A rank that tells what it does and when.
RANK = f"""
import json, os, sys, time
sys.path.insert(0, {HERE!r})
import turns
def tell(what):
    with open(sys.argv[1] + ".told", "a") as file:
        told = [what, time.monotonic(), os.environ["CUDA_VISIBLE_DEVICES"]]
        file.write(json.dumps([*told, len(os.sched_getaffinity(0))]) + "\\n")
turns.use_cores(turns.IMPORTING)
if sys.argv[2] == "broken": sys.exit("Error: broken")
turns.wait("load")
turns.use_cores(turns.OWN)
tell("load")
class training:
    def train_step(): tell("step")
turns.wait_before_step(training, lambda: None)
for _ in range(turns.FIRST_STEPS + 2): training.train_step()
if sys.argv[2] == "hangs": time.sleep(60)
tell("end")
(turns.Path(os.environ[turns.DIRECTORY]) / "done.0").touch()
"""


def training(directory: Path, name: str, kind: str = "good", limit: float = 20) -> Any:
    """A training of one rank."""
    program = directory / "rank.py"
    program.write_text(RANK)
    command = [sys.executable, "-S", str(program), str(directory / name), kind]
    environment = {"RANK": "0", "LOCAL_RANK": "0"}
    return turns.Training(command, environment, 1, directory / f"{name}.log", limit)


def told(directory: Path, name: str) -> list[Any]:
    lines = (directory / f"{name}.told").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_one_is_measured_at_a_time_and_a_broken_one_stops_no_other(tmp_path: Path) -> None:
    kinds = {"a": "good", "b": "broken", "c": "hangs", "d": "good", "e": "good"}
    group = [training(tmp_path, name, kind, limit=3) for name, kind in kinds.items()]
    ended: list[str] = []
    turns.run_all([group], 1, {1: 4}, lambda one: ended.append(one.log.stem))
    assert ended == list(kinds)
    assert "Error: broken" in (tmp_path / "b.log").read_text()
    assert "Error: no done within 3 s" in (tmp_path / "c.log").read_text()
    first, hanging, last = (told(tmp_path, name) for name in "acd")
    # Both are loaded and have made their first steps before either goes on.
    free = 1 + turns.FIRST_STEPS
    assert max(told[free - 1][1] for told in (first, hanging, last)) < first[free][1]
    assert first[-1][1] < hanging[free][1] < last[free][1]
    assert told(tmp_path, "e")[0][1] > last[-1][1]


def test_groups_spread_over_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    groups = [[training(tmp_path, name + way) for way in "12"] for name in "ab"]
    turns.run_all(groups, 2, {}, lambda one: None)
    gpus = [{told(tmp_path, name + way)[0][2] for way in "12"} for name in "ab"]
    assert all(len(one) == 1 for one in gpus)
    assert gpus[0] | gpus[1] == {"2", "5"}


def test_a_layout_of_the_benchmark_uses_its_gpus() -> None:
    for model, gpus in models.GPUS.items():
        words = models.MODELS[model].split()
        value = dict(pairwise(words))  # of a flag that is given twice the last counts
        kinds = ("tensor-model", "pipeline-model", "context")
        used = math.prod(int(value.get(f"--{kind}-parallel-size", 1)) for kind in kinds)
        assert gpus % used == 0
        step = int(value["--micro-batch-size"]) * gpus // used
        assert int(value["--global-batch-size"]) % step == 0


def test_groups_load_together_as_far_as_memory_holds_them(tmp_path: Path) -> None:
    waiting = [[training(tmp_path, name + way) for way in "12"] for name in "abc"]
    for group, size in zip(waiting, (50, 70, 10), strict=True):
        for one in group:
            one.gigabytes = size
    names = [one.log.stem for group in waiting for one in group]
    batches = list(turns._batches(waiting, turns.Lock(), 6, 130, float("inf")))
    assert [[one.log.stem for one in batch] for batch in batches] == [
        [*names[:2], *names[4:]],
        names[2:3],
        names[3:4],
    ]
