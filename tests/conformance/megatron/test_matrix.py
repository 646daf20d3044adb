"""The matrix judges what a training printed, and its results make a page."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "tools")]
try:
    cells: Any = importlib.import_module("cells")
    layouts: Any = importlib.import_module("layouts")
    results: Any = importlib.import_module("compatibility_results")
    page: Any = importlib.import_module("compatibility_page")
finally:
    del sys.path[:2]


def printed(losses: dict[int, float]) -> str:
    """What Megatron prints."""
    return "".join(f" iteration {n:8}/ 6 | lm loss: {x:.6E} |\n" for n, x in losses.items())


@dataclass
class Fake:
    """A trainer whose every run from the checkpoint has one loss more or less.

    :param off: layout's argument -> what is added to the losses of step 5.
    """

    off: dict[str, float]
    status: int = 0
    backend: str = "cpu"
    entry: str = "module"
    release: str = ""

    def train(self, processes: int, words: list[str], *others: object) -> tuple[int, str]:
        if "--load" not in words:
            return 0, ""
        first = layouts.RESUMED if words[words.index("--load") + 1].endswith("resume") else 2
        last = layouts.RESUMED if "--exit-interval" in words else layouts.ALL
        off = sum(more for flag, more in self.off.items() if flag in words)
        steps = range(first + 1, last + 1)
        return self.status, printed({n: 9 - n / 10 + (n == 5) * off for n in steps})


def chain(tmp_path: Path, **options: Any) -> Any:
    trainer = Fake({"1e-4": 1e-3, **options.pop("off", {})}, **options)
    return cells.Chain(trainer, "0.0.1", "dense", "fp32", tmp_path)


@pytest.mark.parametrize(
    ("off", "name", "outcome"),
    [
        ({}, "one", "passed"),
        ({"--sequence-parallel": 3e-5}, "tp2-sp", "failed"),
        ({"--context-parallel-size": 1e-5}, "cp2", "passed"),
        ({}, "injected", "passed"),
        # An injected fault that changes nothing.
        ({"1e-4": 0.0}, "injected", "failed"),
        ({}, "resume", "passed"),
        # Step 5 is the first after the resume, and may be a mean: step 6 counts.
        ({"--sequence-parallel": 1.0}, "resume", "passed"),
    ],
)
def test_a_layout_that_departs_is_found(
    tmp_path: Path, off: dict[str, float], name: str, outcome: str
) -> None:
    one = chain(tmp_path, off=off)
    one.start()
    row = one.run(name)
    assert (row.outcome, bool(row.reason)) == (outcome, outcome == "failed")


def test_a_resume_goes_on_in_its_second_layout(tmp_path: Path) -> None:
    one = chain(tmp_path)
    trained: list[list[str]] = []
    real = one.trainer.train

    def train(processes: int, words: list[str], *others: Any) -> tuple[int, str]:
        trained.append(words)
        return real(processes, words, *others)

    one.trainer.train = train
    one.start()
    trained.clear()
    one.run("resume-dp4")
    first, second = trained
    assert {"--pipeline-model-parallel-size", "--save"} <= set(first)
    assert not {"--pipeline-model-parallel-size", "--save"} & set(second)
    assert second[second.index("--load") + 1] == first[first.index("--save") + 1]


@pytest.mark.parametrize("name", ["one", "tp2", "injected", "resume"])
def test_nothing_passes_without_a_start(tmp_path: Path, name: str) -> None:
    one = chain(tmp_path, status=1)
    one.start()
    assert one.run(name).outcome == "failed"


@pytest.mark.parametrize(
    ("status", "output", "said"),
    [
        (0, printed({4: 8.6, 5: 8.5}), "status 0: iteration"),
        (0, printed({4: 8.6, 5: float("nan"), 6: 8.4}), "a loss is not finite"),
        (
            2,
            "accel-bridge: error: rank 1: no such file\n  evidence: x\nChildFailedError: y",
            "status 2: no such file evidence: x",
        ),
        (1, "[rank0]: ValueError: a\nW1 Sending\nx.ChildFailedError:", "status 1: ValueError: a"),
    ],
)
def test_what_went_wrong_is_said(status: int, output: str, said: str) -> None:
    error = cells.error_in(status, output, (4, 5, 6), cells.losses_in(output))
    assert error.startswith(said)


ROW = results.Row("0.1", "dense fp32", "tp2", "passed", value=1e-6)
RUN = results.Run("matrix", "2026-01-01T00:00Z", "abc", "2 CPU cores", "cpu", {}, "go", [ROW])


@pytest.mark.parametrize(
    ("document", "row", "said"),
    [
        ({"format": 2}, {}, "format 1"),
        ({"kind": "guess"}, {}, "kind 'guess'"),
        ({"extra": 1}, {}, "extra"),
        ({}, {"outcome": "fine"}, "outcome"),
        ({}, {"outcome": "failed"}, "reason"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, document: dict[str, Any], row: dict[str, Any], said: str
) -> None:
    path = tmp_path / "a.json"
    replace(RUN, rows=[replace(ROW, **row)]).write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | document))
    with pytest.raises(ValueError, match=said):
        results.read(path)


def test_the_newest_run_of_a_cell_counts() -> None:
    later = replace(
        RUN, date="2026-01-02T00:00Z", rows=[replace(ROW, outcome="failed", reason="x")]
    )
    other = replace(ROW, case="pp2")
    both = page.newest([replace(RUN, rows=[ROW, other]), later])
    assert {row.case: row.outcome for _, row in both} == {"tp2": "failed", "pp2": "passed"}
