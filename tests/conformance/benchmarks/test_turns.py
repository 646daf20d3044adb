"""Trainings load together and are measured one after the other, on GPUs and cores of their own."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
try:
    turns: Any = importlib.import_module("turns")
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
