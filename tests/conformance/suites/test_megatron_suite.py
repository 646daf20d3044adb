"""megatron_suite.py: what happens to ranks that fail, die and hang, and the verdicts."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(Path(__file__).parent))
import megatron_suite  # noqa: E402
import megatron_suite_ranks  # noqa: E402
import megatron_suite_report as report  # noqa: E402
from megatron_suite_small import Small, read_small  # noqa: E402

TESTS = """
import os, time
import pytest

RANK = int(os.environ["RANK"])

def test_passes():
    assert os.environ["WORLD_SIZE"] == "2"

def test_fails():
    raise ValueError("on every rank")

def test_one_rank_fails():
    assert RANK != 1, "rank one"
    time.sleep(60)

def test_dies():
    if RANK == 0:
        os._exit(3)
    time.sleep(60)

@pytest.mark.flaky_in_dev
def test_hangs():
    time.sleep(60)

def test_skips():
    pytest.skip("not here")

def test_is_reached():
    pass

def test_is_not_chosen():
    pass
"""
ENDS = {
    "passes": ("passed", ""),
    "fails": ("failed", "ValueError: on every rank"),
    "one_rank_fails": ("failed", "AssertionError: rank one"),
    "dies": ("failed", "a rank ended with status 3"),
    "hangs": ("failed", "[marked flaky] no end within 6 s"),
    "skips": ("skipped", ""),
    "is_reached": ("passed", ""),
}


@pytest.mark.conformance
def test_every_test_has_its_end(tmp_path: Path, warm: str) -> None:
    directory = tmp_path / "tests/unit_tests"
    directory.mkdir(parents=True)
    (directory / "test_injected.py").write_text(TESTS)
    words = ["run", str(tmp_path), "--world", "2", "--jobs", "1", "--limit", "6", "--cold"]
    words += ["--without-bridge", "--json", str(tmp_path / "results.json")]
    chosen = tmp_path / "chosen.txt"
    chosen.write_text("".join(f"test_injected.py::test_{name}\n" for name in ENDS))
    words += ["--megatron", "none", "--tests", str(chosen)]
    command = [warm, str(ROOT / "tests/conformance/suites/megatron_suite.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    tests: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert set(tests) == {f"test_injected.py::test_{name}" for name in ENDS}
    for name, (outcome, message) in ENDS.items():
        end = tests[f"test_injected.py::test_{name}"]
        assert end["outcome"] == outcome, (name, end)
        assert message in end["message"]


SPAWNS = """
import subprocess, sys

def test_spawned():
    count = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    assert int(subprocess.check_output(count)) > 0
"""


@pytest.mark.conformance
def test_what_a_test_spawns_has_the_bridge(tmp_path: Path, warm: str) -> None:
    directory = tmp_path / "tests/unit_tests"
    directory.mkdir(parents=True)
    (directory / "test_injected.py").write_text(SPAWNS)
    words = ["run", str(tmp_path), "--megatron", "none", "--json", str(tmp_path / "results.json")]
    command = [warm, str(ROOT / "tests/conformance/suites/megatron_suite.py"), *words]
    subprocess.run(command, check=True, timeout=120)
    tests: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())["tests"]
    assert [end["outcome"] for end in tests.values()] == ["passed"], tests


def test_the_groups_of_a_mesh_outlive_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(model_parallel_is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        kept, forgotten = dist.new_group([0]), dist.new_group([0])
        mesh = dist.DeviceMesh.from_group(kept, "cpu")
        megatron_suite_ranks._destroy_groups()
        assert mesh.get_group() is kept
        with pytest.raises(KeyError):
            dist.get_process_group_ranks(forgotten)
    finally:
        dist.destroy_process_group()


def document(world: int, **ends: str) -> dict[str, Any]:
    """Results on ``world`` ranks: name -> outcome, or the message of a failure."""
    outcomes = ("passed", "skipped", "not run")
    return {
        "world": world,
        "backend": "cpu",
        "tests": {
            f"test_a.py::{name}": {
                "outcome": end if end in outcomes else "failed",
                "message": "" if end in outcomes else end,
                "where": "",
            }
            for name, end in ends.items()
        },
    }


def test_the_verdict_over_all_numbers_of_ranks() -> None:
    reasons = [report.Reason("harness", "ranks", "why", ("world size",))]
    documents = [
        document(1, both="passed", ranks="world size 1", lost="passed", none="not run", few="boom"),
        document(8, both="passed", ranks="passed", ours="boom", lost="boom", none="skipped"),
        document(2, few="world size 2", fewer="boom", ranks="boom"),
    ]
    judged, worlds = report.judge_all(documents, reasons)
    outcomes = {test.partition("::")[2]: one.outcome for test, one in judged.items()}
    # What fails on eight ranks is not hidden by one rank on which it passes; on fewer it counts
    # unless it passes on eight.
    assert outcomes == {
        "both": "passed",
        "ranks": "passed",
        "ours": "failed",
        "lost": "failed",
        "none": "upstream",
        "few": "failed",
        "fewer": "failed",
    }
    assert worlds[1]["test_a.py::ranks"].reason == "ranks"


def test_a_directory_that_ran_again_replaces_its_rows(tmp_path: Path) -> None:
    def machine(name: str, ends: dict[str, str], *words: str) -> str:
        tests = {test: {"outcome": end, "message": "", "where": ""} for test, end in ends.items()}
        (tmp_path / "results.json").write_text(
            json.dumps(document(1) | {"megatron": "0.1", "torch": "2", "tests": tests})
        )
        made = tmp_path / name
        given = ["report", str(tmp_path / "results.json"), "--compatibility", str(made), *words]
        megatron_suite.main(given)
        run: dict[str, Any] = json.loads(made.read_text())
        found.append({(row["subject"], row["outcome"], row.get("count", 1)) for row in run["rows"]})
        return str(run["machine"])

    found: list[set[tuple[str, str, int]]] = []
    ends = {"a/test_a.py::x": "not run", "a/test_a.py::y": "passed", "b/test_b.py::z": "passed"}
    machine("old.json", ends, "--machine", "an old machine")
    again, over = dict.fromkeys([*ends][:2], "passed"), ["--over", str(tmp_path / "old.json")]
    after = machine("new.json", again, *over, "--machine", "here")
    assert found[0] == {("a", "harness", 1), ("a", "passed", 1), ("b", "passed", 1)}
    assert found[1] == {("a", "passed", 2), ("b", "passed", 1)}
    assert re.fullmatch(r"here; on .* at .* with torch 2, an old machine: b", after)
    over[1] = str(tmp_path / "new.json")
    third = machine("third.json", {"b/test_b.py::z": "passed"}, *over, "--machine", "there")
    assert re.fullmatch(r"there; on .* at .* with torch 2, here: a", third)


def test_a_skip_counts_as_megatrons_own_and_says_why() -> None:
    reasons = report.read_reasons()
    for outcome, message, name in (
        ("skipped", "Skipped: MXFP8 requires Blackwell", "a GPU of the Hopper or Blackwell kind"),
        ("skipped", "Skipped: for a reason of its own", "skips itself"),
        # A failure is none, though it says what a skip would say.
        ("failed", "AssertionError: MXFP8 requires Blackwell", "MXFP# requires Blackwell"),
    ):
        end = {"outcome": outcome, "message": message, "where": ""}
        verdict = report.judge_one("test_a.py::test", end, "cpu", reasons)
        assert verdict.reason.endswith(name)
        assert verdict.outcome == ("upstream" if outcome == "skipped" else "failed")


def test_a_file_is_imported_with_its_smaller_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("small_one", "small_two", "small_none"):
        (tmp_path / f"{name}.py").write_text("WIDTH = 4096\n")
    edits = {"small_one": [("4096", "8")], "small_two": [("8192", "8")]}
    Small({str(tmp_path / f"{name}.py"): edit for name, edit in edits.items()}).install()
    assert importlib.import_module("small_one").WIDTH == 8
    assert importlib.import_module("small_none").WIDTH == 4096
    with pytest.raises(ValueError, match="has no '8192'"):
        importlib.import_module("small_two")
    assert read_small(report.REASONS, Path("/x"), "cpu")
    assert not read_small(report.REASONS, Path("/x"), "cuda")
